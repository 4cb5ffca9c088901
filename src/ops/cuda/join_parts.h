#pragma once

#include <cuda_runtime_api.h>

#include "ops/cuda/rows.h"

namespace luna::cuda {

/// Numbers of up to eight float32 tensors, each to its place in one buffer.
struct JoinParts {
  static constexpr int kMost = 8;
  const float* from[kMost] = {};
  int64_t numbers[kMost] = {}, at[kMost] = {};
  int count = 0;
  int64_t most = 0;  ///< numbers of the largest
  void* to = nullptr;
  Scalar type = Scalar::kBFloat16;
};

void join_parts(const JoinParts& args, cudaStream_t stream);

}  // namespace luna::cuda
