#pragma once

#include <cooperative_groups.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/column_sums.h"
#include "ops/cuda/launch.h"

// Kernels whose blocks each find a part of a sum. Where all blocks run at once
// they may wait for each other and add the parts up: one launch less.

namespace luna::cuda {

/// Whether blocks wait for each other. Else a launch of its own adds up.
constexpr bool kSumTogether = false;

/// Blocks of a kernel that the current GPU holds at once.
template <typename... Parameters>
int64_t most_together(void (*kernel)(Parameters...), int threads,
                      size_t memory) {
  int device = 0, processors = 0, each = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       static_cast<int>(memory));
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, threads, memory);
  check_launch("most_together");
  return static_cast<int64_t>(processors) * each;
}

/// total [width] of parts [count, width]; the width is a multiple of 4.
struct Parts {
  const float* parts;
  int64_t count, width;
  float* total;
};

/// At most most_together() blocks; the kernel ends with sum_parts_together, or
/// sum_parts follows here.
template <typename... Parameters, typename... Args>
void launch_together(void (*kernel)(Parameters...), int64_t blocks, int threads,
                     size_t memory, const Parts& sums, cudaStream_t stream,
                     const char* name, const Args&... args) {
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       static_cast<int>(memory));
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = kSumTogether ? 1 : 0;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = memory;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  cudaLaunchKernelEx(&config, kernel, args...);
  check_launch(name);
  if (!kSumTogether) {
    sum_parts(sums.parts, sums.count, sums.width, sums.total, stream);
  }
}

/// Parts that all blocks have written. Always in the same order: a warp adds
/// every kWarps-th part, then come the warps.
template <int kWarps>
__device__ __forceinline__ void sum_parts_together(
    const Parts& sums, float4 (&shared)[kWarps][32]) {
  if constexpr (!kSumTogether) return;
  constexpr int kAhead = 8;  // loads under way
  cooperative_groups::this_grid().sync();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t fours = sums.width / 4, count = sums.count;
  const auto* from = reinterpret_cast<const float4*>(sums.parts);
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * 32; first < fours;
       first += static_cast<int64_t>(gridDim.x) * 32) {
    const int64_t column = first + lane;
    float4 sum = {};
    if (column < fours) {
      for (int64_t k = warp; k < count; k += kAhead * kWarps) {
        float4 x[kAhead];
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          const int64_t part = k + i * kWarps;
          x[i] = part < count ? __ldcg(from + part * fours + column) : float4{};
        }
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          sum.x += x[i].x;
          sum.y += x[i].y;
          sum.z += x[i].z;
          sum.w += x[i].w;
        }
      }
    }
    shared[warp][lane] = sum;
    __syncthreads();
    if (warp == 0 && column < fours) {
      for (int other = 1; other < kWarps; ++other) {
        const float4 x = shared[other][lane];
        sum.x += x.x;
        sum.y += x.y;
        sum.z += x.z;
        sum.w += x.w;
      }
      reinterpret_cast<float4*>(sums.total)[column] = sum;
    }
    __syncthreads();
  }
}

}  // namespace luna::cuda
