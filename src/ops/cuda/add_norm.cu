// A warp a few rows at once, so that enough loads are under way: lane l holds
// the pairs of columns l, l + 32, ... of each in registers, and every number
// is read and written once.

#include "ops/cuda/add_norm.h"

#include <algorithm>

#include "ops/cuda/launch.h"
#include "ops/cuda/pairs.cuh"

namespace luna::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int64_t kMostBlocks = 528;  // 4 for each of an H200's 132 SMs

/// Rows at once.
template <int kPairs>
constexpr int kRows = kPairs >= 4 ? 1 : 4 / kPairs;

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
  constexpr int kAtOnce = kRows<kPairs>;
  const int lane = threadIdx.x % 32;
  const int pairs = static_cast<int>(a.width / 2);
  const RowDropout dropout(a.dropout, ops::DropoutMap::kResidual);
  float2 weight[kPairs], bias[kPairs];
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    const int pair = lane + 32 * j;
    const bool there = pair < pairs;
    weight[j] = there ? load_pair(a.weight, pair, Scalar::kFloat) : float2{};
    bias[j] = there ? load_pair(a.bias, pair, Scalar::kFloat) : float2{};
  }
  const int64_t warp =
      static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kWarps * kAtOnce;
  for (int64_t row = warp * kAtOnce; row < a.rows; row += stride) {
    float2 s[kAtOnce][kPairs];
    uint2 y[kAtOnce][kPairs];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
      for (int j = 0; j < kPairs; ++j) {
        const int pair = lane + 32 * j;
        const int64_t at = (row + i) * pairs + pair;
        const bool there = pair < pairs && row + i < a.rows;
        s[i][j] = there ? load_pair(a.x, at, Scalar::kFloat) : float2{};
        y[i][j] =
            there && a.y != nullptr ? load_raw(a.y, at, a.y_type) : uint2{};
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      // Rows beyond the last are zeros and left unwritten: without a branch
      // the rows' sums go on side by side.
      const bool real = row + i < a.rows;
      const int64_t first = (row + i) * pairs;
      if (a.y != nullptr) {
        const uint64_t key = dropout.row_key(row + i);
#pragma unroll
        for (int j = 0; j < kPairs; ++j) {
          const int pair = lane + 32 * j;
          if (pair >= pairs || !real) continue;
          const float2 more = to_pair(y[i][j], a.y_type);
          const float2 keep = dropout.factors(key, pair);
          s[i][j].x += more.x * keep.x;
          s[i][j].y += more.y * keep.y;
          store_pair(a.sum, first + pair, Scalar::kFloat, s[i][j]);
        }
      }
      const Moments m =
          moments(s[i], lane, pairs, static_cast<float>(a.width), a.eps);
#pragma unroll
      for (int j = 0; j < kPairs; ++j) {
        const int pair = lane + 32 * j;
        if (pair >= pairs || !real) continue;
        const float2 x = s[i][j];
        store_pair(a.normed, first + pair, a.normed_type,
                   {(x.x - m.mean) * m.rstd * weight[j].x + bias[j].x,
                    (x.y - m.mean) * m.rstd * weight[j].y + bias[j].y});
      }
    }
  }
}

template <int kPairs>
__global__ void __launch_bounds__(32 * kWarps) backward_kernel(AddNorm a) {
  constexpr int kAtOnce = kRows<kPairs>;
  __shared__ float2 shared[kWarps][2][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int pairs = static_cast<int>(a.width / 2);
  const float width = static_cast<float>(a.width);
  const RowDropout dropout(a.dropout, ops::DropoutMap::kResidual);
  float2 weight[kPairs], grad_weight[kPairs], grad_bias[kPairs];
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    const int pair = lane + 32 * j;
    weight[j] =
        pair < pairs ? load_pair(a.weight, pair, Scalar::kFloat) : float2{};
    grad_weight[j] = grad_bias[j] = float2{};
  }
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kWarps * kAtOnce;
  for (int64_t row =
           (static_cast<int64_t>(blockIdx.x) * kWarps + warp) * kAtOnce;
       row < a.rows; row += stride) {
    float2 s[kAtOnce][kPairs], beside[kAtOnce][kPairs];
    uint2 raw[kAtOnce][kPairs];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
      for (int j = 0; j < kPairs; ++j) {
        const int pair = lane + 32 * j;
        const int64_t at = (row + i) * pairs + pair;
        const bool there = pair < pairs && row + i < a.rows;
        s[i][j] = there ? load_pair(a.sum, at, Scalar::kFloat) : float2{};
        beside[i][j] = there && a.grad_sum != nullptr
                           ? load_pair(a.grad_sum, at, Scalar::kFloat)
                           : float2{};
        raw[i][j] = there && a.grad_normed != nullptr
                        ? load_raw(a.grad_normed, at, a.normed_type)
                        : uint2{};
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const bool real = row + i < a.rows;
      const int64_t first = (row + i) * pairs;
      const Moments m = moments(s[i], lane, pairs, width, a.eps);
      float2 up[kPairs];
      float inner = 0, along = 0;
#pragma unroll
      for (int j = 0; j < kPairs; ++j) {
        up[j] = float2{};
        if (lane + 32 * j >= pairs) continue;
        up[j] = to_pair(raw[i][j], a.normed_type);
        float2& x = s[i][j];
        x = {(x.x - m.mean) * m.rstd, (x.y - m.mean) * m.rstd};
        grad_weight[j].x += up[j].x * x.x;
        grad_weight[j].y += up[j].y * x.y;
        grad_bias[j].x += up[j].x;
        grad_bias[j].y += up[j].y;
        up[j].x *= weight[j].x;
        up[j].y *= weight[j].y;
        inner += up[j].x + up[j].y;
        along += up[j].x * x.x + up[j].y * x.y;
      }
      inner = sum_of_warp(inner) / width;
      along = sum_of_warp(along) / width;
      const uint64_t key = dropout.row_key(row + i);
#pragma unroll
      for (int j = 0; j < kPairs; ++j) {
        const int pair = lane + 32 * j;
        if (pair >= pairs || !real) continue;
        const float2 x = s[i][j], side = beside[i][j];
        const float2 g = {m.rstd * (up[j].x - inner - x.x * along) + side.x,
                          m.rstd * (up[j].y - inner - x.y * along) + side.y};
        store_pair(a.grad_x, first + pair, Scalar::kFloat, g);
        if (a.grad_y == nullptr) continue;
        const float2 keep = dropout.factors(key, pair);
        store_pair(a.grad_y, first + pair, a.y_type,
                   {g.x * keep.x, g.y * keep.y});
      }
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
