#pragma once

#include <cuda_runtime_api.h>

#include "ops/cuda/rows.h"

namespace luna::cuda {

/// ops/cross_entropy.h, all contiguous. No float64 logits.
struct CrossEntropy {
  int64_t rows = 0, classes = 0;
  const void* logits = nullptr;
  Scalar type = Scalar::kFloat;
  const int64_t* labels = nullptr;
  int64_t ignored = 0;
  float smoothing = 0;
  float* log_sums = nullptr;  ///< [rows, 2]: the largest, log Σ exp of the rest
  // Forward.
  float* of_rows = nullptr;  ///< [2, rows]: loss, 1 where right
  float* totals = nullptr;   ///< [3]: mean loss, right, rows that count
  // Backward.
  const float *grad = nullptr, *count = nullptr;  ///< of the mean loss
  void* grad_logits = nullptr;
};

void cross_entropy_forward(const CrossEntropy& args, cudaStream_t stream);
void cross_entropy_backward(const CrossEntropy& args, cudaStream_t stream);

}  // namespace luna::cuda
