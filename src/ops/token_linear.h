#pragma once

#include <ATen/core/Tensor.h>

namespace luna::ops {

/// x W^T + b, and no less than 0 with `relu`, of the few rows that a decoding
/// step has; without gradients. On a Hopper GPU, in bfloat16, by a kernel whose
/// weights are on their way while the launch before it ends; elsewhere torch's
/// product. x [rows,in], weight [out,in], bias [out].
at::Tensor token_linear(const at::Tensor& x, const at::Tensor& weight,
                        const at::Tensor& bias, bool relu = false);
/// The same by torch's product alone.
at::Tensor plain_token_linear(const at::Tensor& x, const at::Tensor& weight,
                              const at::Tensor& bias, bool relu);

/// What that kernel takes: rows up to where it was measured to be the faster
/// one (on an H200 a step of 6 layers of width 512 takes 197 µs with it and 279
/// without for one row, 352 and 367 for 64), and multiples of these numbers of
/// a row.
inline constexpr int64_t kTokenLinearRows = 64, kTokenLinearIn = 32,
                         kTokenLinearOut = 8;

}  // namespace luna::ops
