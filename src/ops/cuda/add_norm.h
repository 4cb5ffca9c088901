#pragma once

#include <cuda_runtime_api.h>

#include "ops/cuda/rows.h"

namespace luna::cuda {

/// ops/add_norm.h over contiguous rows; the width is even, at most 1,024, and
/// tensors start at multiples of 16 bytes.
struct AddNorm {
  int64_t rows = 0, width = 0;
  const void *weight = nullptr, *bias = nullptr;
  RowDropoutRule dropout;
  float eps = 0;
  Scalar x_type = Scalar::kFloat,  ///< of x, sum, weight and bias
      y_type = Scalar::kFloat, normed_type = Scalar::kFloat,
         low_type = Scalar::kFloat;
  // Forward; null y: x is the sum.
  const void *x = nullptr, *y = nullptr;
  void* sum = nullptr;
  void *normed = nullptr, *low = nullptr;  ///< a null low is not wanted
  // Backward, of float32 x; null gradients are zero, a null grad_y is not
  // wanted.
  const float* grad_sum = nullptr;
  const void *grad_normed = nullptr, *grad_low = nullptr;
  float* grad_x = nullptr;
  void* grad_y = nullptr;
  float* partials = nullptr;   ///< [add_norm_parts, 2, width]
  float* gradients = nullptr;  ///< [2, width]: of weight and bias
};

int64_t add_norm_parts(int64_t rows, int64_t width);
void add_norm_forward(const AddNorm& args, cudaStream_t stream);
void add_norm_backward(const AddNorm& args, cudaStream_t stream);

}  // namespace luna::cuda
