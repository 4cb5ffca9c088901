#pragma once

#include <optional>
#include <string_view>

#include "ops/cuda/tensors.h"

// nested_causal_attention's arguments, and the calls of it that the tensor
// cores' kernels (nested_mma.h) take.

namespace luna::cuda {

struct NestedInputs {
  const at::Tensor &query, &pack_key, &key, &value, &packed_query;
  const std::optional<at::Tensor>&packed_mask, &cu_seqlens;
  std::string_view activation;
  double scale, dropout_p;
  const std::optional<at::Tensor>&seed, &key_state, &value_state, &count;
};

bool by_tensor_cores(const NestedInputs& in);

struct NestedOutputs {
  at::Tensor output, key_state, value_state;
};
void nested_by_tensor_cores(const NestedInputs& in, NestedOutputs& out);

struct NestedGradients {
  at::Tensor query, pack_key, key, value, packed, key_state, value_state;
};
/// query, pack_key, key and value are given; the rest is made here.
void nested_backward_by_tensor_cores(
    const NestedInputs& in, const at::Tensor& grad_output,
    const std::optional<at::Tensor>& grad_key_state,
    const std::optional<at::Tensor>& grad_value_state, NestedGradients& out);

}  // namespace luna::cuda
