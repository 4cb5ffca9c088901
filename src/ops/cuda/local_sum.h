#pragma once

#include <cuda_runtime_api.h>

#include "ops/cuda/rows.h"

namespace luna::cuda {

/// ops/local_sum.h, all contiguous but x, whose tokens lie `stride` apart.
struct LocalSum {
  int64_t count = 0;   ///< of tokens
  int64_t length = 0;  ///< of a sequence, where not packed
  int64_t width = 0;
  int64_t stride = 0;
  int rows = 1, taps = 1;           ///< of the weight
  int64_t columns = 0;              ///< 0: a sequence is one row
  const int64_t* starts = nullptr;  ///< [sequences + 1]; null: not packed
  int64_t sequences = 0;
  Scalar type = Scalar::kFloat;  ///< of x, out and grad
  const void* x = nullptr;
  const void* weight = nullptr;  ///< [rows,taps,width], in the dtype of sums
  void* out = nullptr;
  // Backward.
  const void* grad = nullptr;
  void* partials = nullptr;  ///< [local_sum_parts,rows,taps,width]
};

int64_t local_sum_parts(const LocalSum& args);
void local_sum_forward(const LocalSum& args, cudaStream_t stream);
void local_sum_weight_backward(const LocalSum& args, cudaStream_t stream);

}  // namespace luna::cuda
