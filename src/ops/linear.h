#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace luna::ops {

/// x W^T + b as autocast computes it: in its dtype where it is on, with
/// gradients of weight and bias in float32. On a GPU both are summed in one
/// reading, at the speed of memory, which torch's products and reductions are
/// far from for narrow rows. x [...,in], weight [out,in], bias [out].
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight,
                  const at::Tensor& bias);

/// up^T x [out,in] and the sum of up's rows [out], float32; up [rows,out],
/// x [rows,in].
std::tuple<at::Tensor, at::Tensor> linear_gradients(const at::Tensor& up,
                                                    const at::Tensor& x);

}  // namespace luna::ops
