#pragma once

#include <ATen/core/Tensor.h>

namespace luna::ops {

/// relu(x hidden^T + bias) out^T of a few rows, in one kernel each way: apart,
/// its products cost a GPU a launch each and next to no work. x [B,D],
/// hidden_weight [H,D], hidden_bias [H], out_weight [C,H]; all float32.
at::Tensor mlp_head(const at::Tensor& x, const at::Tensor& hidden_weight,
                    const at::Tensor& hidden_bias,
                    const at::Tensor& out_weight);

/// Whether there are kernels for these: on a GPU, in float32, few and narrow
/// enough.
bool mlp_head_is_fused(const at::Tensor& x, const at::Tensor& hidden_weight,
                       const at::Tensor& hidden_bias,
                       const at::Tensor& out_weight);

}  // namespace luna::ops
