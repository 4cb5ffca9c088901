// A warp a row: lane l holds the pairs of columns l, l + 32, ... in registers,
// so that every number is read and written once.

#include "ops/cuda/add_norm.h"

#include <algorithm>

#include "ops/cuda/launch.h"
#include "ops/cuda/pairs.cuh"

namespace luna::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int64_t kMostBlocks = 1056;  // 8 for each of an H200's 132 SMs

__device__ __forceinline__ float sum_of_warp(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    x += __shfl_xor_sync(0xffffffffu, x, step);
  }
  return x;
}

struct Moments {
  float mean, rstd;
};

/// x holds a lane's pairs, zeros beyond the row.
template <int kPairs>
__device__ __forceinline__ Moments moments(const float2 (&x)[kPairs], int lane,
                                           int pairs, float width, float eps) {
  float sum = 0;
#pragma unroll
  for (int j = 0; j < kPairs; ++j) sum += x[j].x + x[j].y;
  const float mean = sum_of_warp(sum) / width;
  float squares = 0;
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    if (lane + 32 * j < pairs) {
      const float a = x[j].x - mean, b = x[j].y - mean;
      squares += a * a + b * b;
    }
  }
  return {mean, rsqrtf(sum_of_warp(squares) / width + eps)};
}

template <int kPairs>
__global__ void __launch_bounds__(32 * kWarps) forward_kernel(AddNorm a) {
  const int lane = threadIdx.x % 32;
  const int pairs = static_cast<int>(a.width / 2);
  const RowDropout dropout(a.seed, a.dropout_p, ops::DropoutMap::kResidual);
  float2 weight[kPairs], bias[kPairs];
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    const int pair = lane + 32 * j;
    const bool there = pair < pairs;
    weight[j] = there ? load_pair(a.weight, pair, Scalar::kFloat) : float2{};
    bias[j] = there ? load_pair(a.bias, pair, Scalar::kFloat) : float2{};
  }
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kWarps;
  for (int64_t row =
           static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
       row < a.rows; row += stride) {
    const int64_t first = row * pairs;
    const uint64_t key = dropout.row_key(row);
    float2 s[kPairs];
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      const int pair = lane + 32 * j;
      s[j] = float2{};
      if (pair < pairs) {
        s[j] = load_pair(a.x, first + pair, Scalar::kFloat);
        if (a.y != nullptr) {
          const float2 y = load_pair(a.y, first + pair, a.y_type);
          const float2 keep = dropout.factors(key, pair);
          s[j].x += y.x * keep.x;
          s[j].y += y.y * keep.y;
          store_pair(a.sum, first + pair, Scalar::kFloat, s[j]);
        }
      }
    }
    const Moments m =
        moments(s, lane, pairs, static_cast<float>(a.width), a.eps);
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      const int pair = lane + 32 * j;
      if (pair < pairs) {
        store_pair(a.normed, first + pair, a.normed_type,
                   {(s[j].x - m.mean) * m.rstd * weight[j].x + bias[j].x,
                    (s[j].y - m.mean) * m.rstd * weight[j].y + bias[j].y});
      }
    }
  }
}

template <int kPairs>
__global__ void __launch_bounds__(32 * kWarps) backward_kernel(AddNorm a) {
  __shared__ float2 shared[kWarps][2][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int pairs = static_cast<int>(a.width / 2);
  const float width = static_cast<float>(a.width);
  const RowDropout dropout(a.seed, a.dropout_p, ops::DropoutMap::kResidual);
  float2 weight[kPairs], grad_weight[kPairs], grad_bias[kPairs];
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    const int pair = lane + 32 * j;
    weight[j] =
        pair < pairs ? load_pair(a.weight, pair, Scalar::kFloat) : float2{};
    grad_weight[j] = grad_bias[j] = float2{};
  }
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kWarps;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + warp;
       row < a.rows; row += stride) {
    const int64_t first = row * pairs;
    float2 s[kPairs], up[kPairs], beside[kPairs];
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      const int pair = lane + 32 * j;
      s[j] = up[j] = beside[j] = float2{};
      if (pair < pairs) {
        // What has to be converted last: that waits for its load.
        s[j] = load_pair(a.sum, first + pair, Scalar::kFloat);
        if (a.grad_sum != nullptr) {
          beside[j] = load_pair(a.grad_sum, first + pair, Scalar::kFloat);
        }
        if (a.grad_normed != nullptr) {
          up[j] = load_pair(a.grad_normed, first + pair, a.normed_type);
        }
      }
    }
    const Moments m = moments(s, lane, pairs, width, a.eps);
    float inner = 0, along = 0;
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      if (lane + 32 * j >= pairs) continue;
      s[j] = {(s[j].x - m.mean) * m.rstd, (s[j].y - m.mean) * m.rstd};
      grad_weight[j].x += up[j].x * s[j].x;
      grad_weight[j].y += up[j].y * s[j].y;
      grad_bias[j].x += up[j].x;
      grad_bias[j].y += up[j].y;
      up[j] = {up[j].x * weight[j].x, up[j].y * weight[j].y};
      inner += up[j].x + up[j].y;
      along += up[j].x * s[j].x + up[j].y * s[j].y;
    }
    inner = sum_of_warp(inner) / width;
    along = sum_of_warp(along) / width;
    const uint64_t key = dropout.row_key(row);
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      const int pair = lane + 32 * j;
      if (pair >= pairs) continue;
      const float2 g = {
          m.rstd * (up[j].x - inner - s[j].x * along) + beside[j].x,
          m.rstd * (up[j].y - inner - s[j].y * along) + beside[j].y};
      store_pair(a.grad_x, first + pair, Scalar::kFloat, g);
      if (a.grad_y == nullptr) continue;
      const float2 keep = dropout.factors(key, pair);
      store_pair(a.grad_y, first + pair, a.y_type,
                 {g.x * keep.x, g.y * keep.y});
    }
  }
  // The warps' sums, always in the same order.
  for (int j = 0; j < kPairs; ++j) {
    shared[warp][0][lane] = grad_weight[j];
    shared[warp][1][lane] = grad_bias[j];
    __syncthreads();
    const int pair = lane + 32 * j;
    if (warp < 2 && pair < pairs) {
      float2 total = {};
      for (int w = 0; w < kWarps; ++w) {
        total.x += shared[w][warp][lane].x;
        total.y += shared[w][warp][lane].y;
      }
      store_pair(a.partials,
                 (static_cast<int64_t>(blockIdx.x) * 2 + warp) * pairs + pair,
                 Scalar::kFloat, total);
    }
    __syncthreads();
  }
}

/// Calls `body` with the least number of pairs a lane needs for the width.
template <typename Body>
void with_pairs(int64_t width, Body body) {
  if (width <= 64) {
    body.template operator()<1>();
  } else if (width <= 128) {
    body.template operator()<2>();
  } else if (width <= 256) {
    body.template operator()<4>();
  } else if (width <= 512) {
    body.template operator()<8>();
  } else {
    body.template operator()<16>();
  }
}

}  // namespace

int64_t add_norm_blocks(int64_t rows) {
  return std::max<int64_t>(1,
                           std::min(kMostBlocks, (rows + kWarps - 1) / kWarps));
}

void add_norm_forward(const AddNorm& a, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(add_norm_blocks(a.rows));
  with_pairs(a.width, [&]<int kPairs>() {
    forward_kernel<kPairs><<<blocks, 32 * kWarps, 0, stream>>>(a);
  });
  check_launch("add_norm");
}

void add_norm_backward(const AddNorm& a, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(add_norm_blocks(a.rows));
  with_pairs(a.width, [&]<int kPairs>() {
    backward_kernel<kPairs><<<blocks, 32 * kWarps, 0, stream>>>(a);
  });
  check_launch("add_norm_backward");
}

}  // namespace luna::cuda
