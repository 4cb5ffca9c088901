#pragma once

#include <ATen/core/Tensor.h>

// An optimizer step over all tensors of a small model in one launch: torch's
// kernels give a small model's few numbers to a few blocks, one after another.

namespace luna::ops {

/// Whether there are kernels for these: on a GPU, contiguous float32, at most
/// 128 tensors of four million numbers in all.
bool are_few(at::TensorList tensors);

/// The norm of all tensors as one vector, a scalar.
at::Tensor norm_of_few(at::TensorList tensors);

struct AdamRules {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  bool decoupled = true;  ///< AdamW: decay is taken from the weights
};
/// What torch's _fused_adam_ and _fused_adamw_ do, but for the gradients, which
/// stay as they are. updates, lr, scale and skip are float32 scalars beside
/// the parameters: gradients are divided by scale, and where skip is 1 nothing
/// changes.
struct AdamState {
  at::Tensor updates, lr, scale, skip;
};
void adam_step_of_few(at::TensorList parameters, at::TensorList gradients,
                      at::TensorList first, at::TensorList second,
                      const AdamState& state, const AdamRules& rules);

}  // namespace luna::ops
