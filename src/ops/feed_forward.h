#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

// A layer's feed-forward part, dropout(gelu(x up^T + b)) down^T + c, in one
// kernel each way that keeps what lies between its two products to itself.

namespace luna::ops {

/// x [...,D] in bfloat16, the weights up [H,D] and down [D,H] and their biases
/// in float32. In bfloat16, with gradients of the weights in float32. `seed`
/// int64 [2], where dropout_p > 0.
at::Tensor feed_forward(const at::Tensor& x, const at::Tensor& up_weight,
                        const at::Tensor& up_bias,
                        const at::Tensor& down_weight,
                        const at::Tensor& down_bias, double dropout_p = 0,
                        const std::optional<at::Tensor>& seed = std::nullopt);

/// Whether the CUDA kernels take these, and autocast to bfloat16 asks for
/// them: on a GPU, D = 64, H = 128.
bool feed_forward_is_fused(const at::Tensor& x, const at::Tensor& up_weight,
                           const at::Tensor& up_bias,
                           const at::Tensor& down_weight,
                           const at::Tensor& down_bias);

}  // namespace luna::ops
