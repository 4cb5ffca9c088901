#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

// What stands between two parts of a layer, in one pass over memory:
//
//   sum    = x + dropout(y)
//   normed = (sum - mean) / sqrt(variance + eps) * weight + bias, by row

namespace luna::ops {

struct AddNormOptions {
  double dropout_p = 0.0;
  std::optional<at::Tensor> seed{};  ///< int64 [2], where dropout_p > 0
  double eps = 1e-5;
  at::ScalarType normed_dtype = at::kFloat;
  /// `low` is wanted: normed once more, in this dtype, for products to read.
  std::optional<at::ScalarType> low_dtype{};
};

struct AddNormResult {
  at::Tensor sum, normed, low;
};

/// x [...,D] float32 or, where no gradient is wanted, bfloat16 or float16; y of
/// its shape in one of these, or none; weight and bias [D] of x's dtype. The
/// arithmetic is float32's. Without y sum is x. The gradients of all that is
/// given are added in the same pass.
AddNormResult add_norm(const at::Tensor& x, const std::optional<at::Tensor>& y,
                       const at::Tensor& weight, const at::Tensor& bias,
                       const AddNormOptions& options);

/// Whether the CUDA kernels take these: on a GPU, dtypes as above, D even and
/// at most 1,024.
bool add_norm_is_fused(const at::Tensor& x, const std::optional<at::Tensor>& y,
                       const at::Tensor& weight);

void check_add_norm(const at::Tensor& x, const std::optional<at::Tensor>& y,
                    const at::Tensor& weight, const at::Tensor& bias,
                    double dropout_p, const std::optional<at::Tensor>& seed);

}  // namespace luna::ops
