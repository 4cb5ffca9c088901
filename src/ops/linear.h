#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>
#include <vector>

namespace luna::ops {

/// x W^T + b as autocast computes it: in its dtype where it is on, with
/// gradients of weight and bias in float32. On a GPU both are summed in one
/// reading, at the speed of memory, which torch's products and reductions are
/// far from for narrow rows. x [...,in], weight [out,in], bias [out].
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight,
                  const at::Tensor& bias);

/// The same of several layers that read one x: on a GPU one product, but for
/// gradients without autocast. A layer whose output nobody reads gets none.
std::vector<at::Tensor> linears(const at::Tensor& x, at::TensorList weights,
                                at::TensorList biases);

/// What linears does under autocast to `dtype`, in one product.
std::vector<at::Tensor> joint_linears(const at::Tensor& x,
                                      at::TensorList weights,
                                      at::TensorList biases,
                                      at::ScalarType dtype);

constexpr int64_t kPartAlignment = 8;
constexpr int64_t aligned_part(int64_t numbers) {
  return (numbers + kPartAlignment - 1) / kPartAlignment * kPartAlignment;
}

/// All parts' numbers in `dtype`, one after the other, each from a multiple of
/// kPartAlignment on. [numbers]; what lies between is not for reading.
at::Tensor join_parts(at::TensorList parts, at::ScalarType dtype);

/// up^T x [out,in] and the sum of up's rows [out], float32; up [rows,out],
/// x [rows,in].
std::tuple<at::Tensor, at::Tensor> linear_gradients(const at::Tensor& up,
                                                    const at::Tensor& x);

}  // namespace luna::ops
