#include "ops/cuda/mlp_head.h"

#include "ops/cuda/launch.h"

namespace luna::cuda {
namespace {

constexpr int kWarps = 8, kThreads = 32 * kWarps;

__device__ __forceinline__ float sum_of_warp(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    x += __shfl_xor_sync(0xffffffffu, x, step);
  }
  return x;
}

// A block a row; a warp a hidden number or a class at a time.
__global__ void __launch_bounds__(kThreads) forward_kernel(MlpHead p) {
  __shared__ float x[MlpHead::kMostWidth], active[MlpHead::kMostHidden];
  const int row = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int i = threadIdx.x; i < p.width; i += kThreads) {
    x[i] = p.x[row * p.width + i];
  }
  __syncthreads();
#pragma unroll 8
  for (int h = warp; h < p.hidden; h += kWarps) {
    float sum = 0;
    for (int i = lane; i < p.width; i += 32) {
      sum += p.hidden_weight[h * p.width + i] * x[i];
    }
    sum = sum_of_warp(sum) + p.hidden_bias[h];
    if (sum < 0) sum = 0;  // what is no number stays
    if (lane == 0) {
      active[h] = sum;
      p.active[row * p.hidden + h] = sum;
    }
  }
  __syncthreads();
  for (int c = warp; c < p.classes; c += kWarps) {
    float sum = 0;
    for (int h = lane; h < p.hidden; h += 32) {
      sum += p.out_weight[c * p.hidden + h] * active[h];
    }
    sum = sum_of_warp(sum);
    if (lane == 0) p.logits[row * p.classes + c] = sum;
  }
}

/// The gradient before the relu.
__device__ __forceinline__ float inner(const MlpHead& p, int row, int h) {
  if (p.active[row * p.hidden + h] <= 0) return 0;
  float sum = 0;
  for (int c = 0; c < p.classes; ++c) {
    sum += p.grad[row * p.classes + c] * p.out_weight[c * p.hidden + h];
  }
  return sum;
}

/// to[i] = sum over n < count of factor[n] rows[n, i], by groups of threads
/// that each take every so many n.
__device__ __forceinline__ void weighted_sum(const float* factor,
                                             const float* rows, int count,
                                             int width, float* to,
                                             float* shared) {
  const int groups = kThreads / width;  // the width is at most kThreads
  const int group = threadIdx.x / width, i = threadIdx.x % width;
  float sum = 0;
  if (group < groups) {
#pragma unroll 16
    for (int n = group; n < count; n += groups) {
      sum += factor[n] * rows[n * width + i];
    }
  }
  shared[threadIdx.x] = sum;
  __syncthreads();
  if (group != 0) return;
  for (int other = 1; other < groups; ++other) sum += shared[other * width + i];
  to[i] = sum;
}

// The first blocks each a hidden number's weights and bias, the others each a
// row of x.
__global__ void __launch_bounds__(kThreads) backward_kernel(MlpHead p) {
  static_assert(MlpHead::kMostRows == MlpHead::kMostHidden);
  __shared__ float back[MlpHead::kMostRows], active[MlpHead::kMostRows];
  __shared__ float shared[kThreads];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int block = blockIdx.x;
  if (block >= p.hidden) {
    const int row = block - p.hidden;
    for (int h = threadIdx.x; h < p.hidden; h += kThreads) {
      back[h] = inner(p, row, h);
    }
    __syncthreads();
    weighted_sum(back, p.hidden_weight, p.hidden, p.width,
                 p.grad_x + row * p.width, shared);
    return;
  }
  for (int row = threadIdx.x; row < p.rows; row += kThreads) {
    back[row] = inner(p, row, block);
    active[row] = p.active[row * p.hidden + block];
  }
  __syncthreads();
  for (int c = warp; c <= p.classes; c += kWarps) {
    float sum = 0;
    for (int row = lane; row < p.rows; row += 32) {
      sum +=
          c < p.classes ? p.grad[row * p.classes + c] * active[row] : back[row];
    }
    sum = sum_of_warp(sum);
    if (lane == 0) {
      *(c < p.classes ? p.grad_out_weight + c * p.hidden + block
                      : p.grad_hidden_bias + block) = sum;
    }
  }
  weighted_sum(back, p.x, p.rows, p.width,
               p.grad_hidden_weight + block * p.width, shared);
}

}  // namespace

void mlp_head(const MlpHead& p, cudaStream_t stream) {
  forward_kernel<<<static_cast<unsigned>(p.rows), kThreads, 0, stream>>>(p);
  check_launch("mlp_head");
}

void mlp_head_backward(const MlpHead& p, cudaStream_t stream) {
  backward_kernel<<<static_cast<unsigned>(p.hidden + p.rows), kThreads, 0,
                    stream>>>(p);
  check_launch("mlp_head_backward");
}

}  // namespace luna::cuda
