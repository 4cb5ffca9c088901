// linear_attention on the GPU: sums.h over features that are given.

#include <torch/library.h>

#include "ops/cuda/steps.h"
#include "ops/cuda/sums.h"

namespace luna::cuda {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

std::tuple<Tensor, Tensor, Tensor, Tensor> forward(
    const Tensor& query, const Tensor& key, const Tensor& value,
    const OptionalTensor& key_weight, const OptionalTensor& cu_seqlens_q,
    const OptionalTensor& cu_seqlens_k, bool causal, bool normalize, double eps,
    const OptionalTensor& state, bool save) {
  const ops::LinearSums sums{query,        key,          value,  key_weight,
                             cu_seqlens_q, cu_seqlens_k, causal, normalize,
                             eps,          state};
  ops::check_linear_sums("linear_attention", sums, query.size(-1));
  const c10::cuda::CUDAGuard guard(query.device());
  const auto r = forward_sums(sums, query, key, save);
  return {r.output, r.state, r.denominator, r.segment_states};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> backward(
    const Tensor& grad_output, const OptionalTensor& grad_state,
    const Tensor& query, const Tensor& key, const Tensor& value,
    const OptionalTensor& key_weight, const OptionalTensor& cu_seqlens_q,
    const OptionalTensor& cu_seqlens_k, bool causal, bool normalize, double eps,
    const OptionalTensor& state, const Tensor& output,
    const Tensor& final_state, const Tensor& denominator,
    const Tensor& segment_states) {
  const ops::LinearSums sums{query,        key,          value,  key_weight,
                             cu_seqlens_q, cu_seqlens_k, causal, normalize,
                             eps,          state};
  const c10::cuda::CUDAGuard guard(query.device());
  Tensor grad_query = ops::empty_heads(query), grad_key = ops::empty_heads(key);
  const auto g =
      backward_sums(sums, {output, final_state, denominator, segment_states},
                    grad_output, grad_state, query, key, grad_query, grad_key);
  const auto or_empty = [&](const Tensor& x) {
    return x.defined() ? x : at::empty({0}, query.options());
  };
  return {grad_query, grad_key, g.value, or_empty(g.key_weight),
          or_empty(g.state)};
}

Tensor step(const Tensor& query, const Tensor& key, const Tensor& value,
            Tensor& state, const OptionalTensor& key_weight, bool normalize,
            double eps) {
  ops::check_linear_step("linear_attention_step", query, key, value, state,
                         key_weight, eps, query.size(-1));
  const c10::cuda::CUDAGuard guard(query.device());
  const Tensor output = at::empty(value.sizes(), value.options());
  dispatch_compute(query, [&]<typename T>() {
    Tensor holder;
    const OptionalTensor weight =
        key_weight ? OptionalTensor(key_weight->unsqueeze(-1)) : std::nullopt;
    advance_states<T>(
        {query.size(0), query.size(1), query.size(2), value.size(2),
         token_rows_of(query), token_rows_of(key), token_rows_of(value),
         token_rows_of(output),
         weight_of<T>(weight, state.scalar_type(), holder),
         state.mutable_data_ptr<T>(), normalize, static_cast<T>(eps)},
        c10::cuda::getCurrentCUDAStream());
  });
  return output;
}

TORCH_LIBRARY_IMPL(luna, CUDA, m) {
  m.impl("_linear_attention_forward", forward);
  m.impl("linear_attention_backward", backward);
  m.impl("linear_attention_step", step);
}

}  // namespace
}  // namespace luna::cuda
