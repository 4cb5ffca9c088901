#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/column_sums.h"
#include "ops/cuda/launch.h"

// Kernels whose blocks, no more than the GPU holds at once, each find a part of
// a sum; a launch of its own adds the parts up.

namespace luna::cuda {

/// Lets a kernel have so much dynamic shared memory on the current GPU.
template <typename... Parameters>
void allow_memory(void (*kernel)(Parameters...), size_t memory) {
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       static_cast<int>(memory));
}

/// Blocks of a kernel that the current GPU holds at once.
template <typename... Parameters>
int64_t blocks_at_once(void (*kernel)(Parameters...), int threads,
                       size_t memory) {
  int each = 0;
  allow_memory(kernel, memory);
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, threads, memory);
  check_launch("blocks_at_once");
  return static_cast<int64_t>(multiprocessors()) * each;
}

/// total [width] of parts [count, width]; the width is a multiple of 4.
struct Parts {
  const float* parts;
  int64_t count, width;
  float* total;
};

/// A kernel that leaves `sums.parts`, then their sum.
template <typename... Parameters, typename... Args>
void launch_and_sum(void (*kernel)(Parameters...), int64_t blocks, int threads,
                    size_t memory, const Parts& sums, cudaStream_t stream,
                    const char* name, const Args&... args) {
  allow_memory(kernel, memory);
  kernel<<<static_cast<unsigned>(blocks), threads, memory, stream>>>(args...);
  check_launch(name);
  sum_parts(sums.parts, sums.count, sums.width, sums.total, stream);
}

}  // namespace luna::cuda
