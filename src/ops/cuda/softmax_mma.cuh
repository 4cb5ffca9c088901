#pragma once

#include "ops/cuda/dropout.cuh"
#include "ops/cuda/mma.cuh"
#include "ops/cuda/softmax_mma.h"
#include "ops/cuda/tile.cuh"

// What the kernels of softmax_mma.h share.

namespace luna::cuda::softmax_mma {

using mma::Left;
using mma::Sum;
using mma::Tile;

constexpr float kLog2E = 1.44269504088896340736f;
constexpr float kLowest = -1e38f;
constexpr int kWarps = 8;
constexpr int kBlock = 32 * kWarps;

__device__ __forceinline__ float inverse_of(float sum) {
  return sum == 0.f ? 0.f : 1.f / fmaxf(sum, 1e-37f);
}
/// Keys of weight 0 may lie above the maximum: their power stays finite.
__device__ __forceinline__ float capped_power(float x) {
  return mma::power(fminf(x, 100.f));
}

template <typename T>
__device__ __forceinline__ T* row_pointer(const Rows& r, int64_t batch,
                                          int64_t head, int64_t row) {
  return static_cast<T*>(r.data) + row_at(r, batch, head, row);
}

/// Rows [row, row + 16) from global memory as left operands; zeros from row
/// `count` and from column `width` on.
template <typename T, int D>
__device__ __forceinline__ void load_left(Left (&x)[D / 16], const T* rows,
                                          int64_t stride, int row,
                                          int64_t count, int width) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = row + g + 8 * (i % 2),
                column = 16 * k + 2 * t + 8 * (i / 2);
      x[k][i] =
          r < count && column < width
              ? *reinterpret_cast<const uint32_t*>(rows + r * stride + column)
              : 0u;
    }
  }
}

/// Shared memory a block may have.
inline size_t memory_limit() {
  int device = 0, bytes = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                         device);
  return static_cast<size_t>(bytes);
}

template <typename Kernel, typename Args>
void launch(Kernel kernel, dim3 grid, size_t memory, const Args& args,
            cudaStream_t stream, const char* name) {
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       static_cast<int>(memory));
  kernel<<<grid, kBlock, memory, stream>>>(args);
  check_launch(name);
}

/// The width that the kernels are compiled for.
inline int padded(int64_t width) {
  return width <= 32 ? 32 : (width <= 64 ? 64 : 128);
}
inline int64_t padded_slots(int64_t slots) {
  return slots <= 16 ? 16 : (slots + 31) / 32 * 32;
}

size_t forward_memory(const SoftmaxShape& shape, bool pack);
size_t backward_memory(const SoftmaxShape& shape, bool pack);

}  // namespace luna::cuda::softmax_mma
