#pragma once

#include <ATen/core/Tensor.h>

namespace luna::ops {

/// x W^T + b as autocast computes it: in its dtype where it is on, with
/// gradients of weight and bias in float32. On a GPU the bias's gradient is
/// summed at the speed of memory, which torch's own reduction is far from for
/// narrow rows. x [...,in], weight [out,in], bias [out].
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight,
                  const at::Tensor& bias);

/// The sum of the rows of x [rows, width], float32.
at::Tensor column_sums(const at::Tensor& x);

}  // namespace luna::ops
