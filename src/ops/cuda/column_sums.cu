#include "ops/cuda/column_sums.h"

#include <algorithm>

#include "ops/cuda/launch.h"
#include "ops/cuda/pairs.cuh"

namespace luna::cuda {
namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ float2 to_float(float2 x) { return x; }
__device__ __forceinline__ float2 to_float(__nv_bfloat162 x) {
  return __bfloat1622float2(x);
}
__device__ __forceinline__ float2 to_float(__half2 x) {
  return __half22float2(x);
}

// A thread a pair of columns of every so many rows.
template <typename Pair>
__global__ void columns_kernel(const Pair* x, int64_t rows, int pairs,
                               float* partials) {
  __shared__ float2 shared[kThreads];
  constexpr int kAhead = 8;  // loads in flight
  const int lanes = kThreads / pairs;
  const int pair = threadIdx.x % pairs, lane = threadIdx.x / pairs;
  float2 sum = {};
  if (lane < lanes) {
    const int64_t step = static_cast<int64_t>(gridDim.x) * lanes;
    for (int64_t row = static_cast<int64_t>(blockIdx.x) * lanes + lane;
         row < rows; row += kAhead * step) {
      Pair ahead[kAhead];
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        const int64_t at = row + j * step;
        ahead[j] = at < rows ? x[at * pairs + pair] : Pair{};
      }
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        const float2 v = to_float(ahead[j]);
        sum.x += v.x;
        sum.y += v.y;
      }
    }
  }
  shared[threadIdx.x] = sum;
  __syncthreads();
  if (lane != 0) return;
  for (int other = 1; other < lanes; ++other) {
    sum.x += shared[other * pairs + pair].x;
    sum.y += shared[other * pairs + pair].y;
  }
  store_pair(partials, static_cast<int64_t>(blockIdx.x) * pairs + pair,
             Scalar::kFloat, sum);
}

constexpr int kColumns = 32, kLanes = 32;

// A block 32 columns, a lane every 32nd part; then the lanes in order.
__global__ void parts_kernel(const float* parts, int64_t count, int64_t width,
                             float* total) {
  __shared__ float shared[kLanes][kColumns];
  const int64_t column =
      static_cast<int64_t>(blockIdx.x) * kColumns + threadIdx.x;
  float sum = 0;
  if (column < width) {
#pragma unroll 8
    for (int64_t k = threadIdx.y; k < count; k += kLanes) {
      sum += parts[k * width + column];
    }
  }
  shared[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= width) return;
  for (int lane = 1; lane < kLanes; ++lane) sum += shared[lane][threadIdx.x];
  total[column] = sum;
}

}  // namespace

int64_t column_blocks(int64_t rows) {
  return std::clamp<int64_t>(rows / 64, 1, 528);
}

void column_sums(const void* x, Scalar type, int64_t rows, int64_t width,
                 float* partials, cudaStream_t stream) {
  const auto launch = [&]<typename Pair>(const Pair* pairs) {
    columns_kernel<<<static_cast<unsigned>(column_blocks(rows)), kThreads, 0,
                     stream>>>(pairs, rows, static_cast<int>(width / 2),
                               partials);
  };
  switch (type) {
    case Scalar::kBFloat16:
      launch(static_cast<const __nv_bfloat162*>(x));
      break;
    case Scalar::kHalf:
      launch(static_cast<const __half2*>(x));
      break;
    default:
      launch(static_cast<const float2*>(x));
  }
  check_launch("column_sums");
}

void sum_parts(const float* parts, int64_t count, int64_t width, float* total,
               cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((width + kColumns - 1) / kColumns);
  parts_kernel<<<blocks, dim3(kColumns, kLanes), 0, stream>>>(parts, count,
                                                              width, total);
  check_launch("sum_parts");
}

}  // namespace luna::cuda
