// Both layers of a narrow feed-forward part in one pass: what lies between
// them never leaves the processor, and backward computes it again. Numbers are
// rounded where separate layers would round them (with dropout once less).

#include "ops/cuda/feed_forward.h"

#include <algorithm>

#include "ops/cuda/narrow.cuh"
#include "ops/cuda/pairs.cuh"
#include "ops/cuda/parts.cuh"

namespace luna::cuda {
namespace {

using namespace mma;
using namespace narrow;

constexpr int kWidth = FeedForward::kWidth, kHidden = FeedForward::kHidden;
using Narrow = Tile<kWidth>;
using Wide = Tile<kHidden>;

constexpr int kWeightBytes = 2 * FeedForward::kWeight;

struct Normal {
  float below, density;
};
/// Of the normal distribution: the share below v and the density at v.
/// Abramowitz and Stegun's 7.1.26, to 1e-7; the tail by itself, not as what is
/// missing to 1.
__device__ __forceinline__ Normal normal(float v) {
  const float e = power(-0.72134752f * v * v);  // exp(-v^2 / 2)
  const float t = __fdividef(1.0f, fmaf(0.23164189f, fabsf(v), 1.0f));
  float sum = fmaf(0.53070271f, t, -0.72657601f);
  sum = fmaf(sum, t, 0.71070687f);
  sum = fmaf(sum, t, -0.14224837f);
  sum = fmaf(sum, t, 0.12741480f);
  const float tail = sum * t * e;
  return {v < 0 ? tail : 1.0f - tail, 0.39894228f * e};
}

constexpr int kForwardBytes = 2 * kWeightBytes;

// A warp 16 rows at a time.
template <bool kDrops>
__global__ void __launch_bounds__(kThreads, 1) forward_kernel(FeedForward p) {
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ float up_bias[kHidden], down_bias[kWidth];
  const uint32_t up = shared_address(memory), down = up + kWeightBytes;
  const int warp = threadIdx.x / 32;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kWarps * 16;
  int64_t row = (static_cast<int64_t>(blockIdx.x) * kWarps + warp) * 16;
  RowsOfWarp rows;
  rows.load(p.x, p.rows, row);
  load_weight<kWidth, kHidden>(
      up, p.up_weight, [](int n, int k) { return n * kWidth + column_of(k); });
  load_weight<kHidden, kWidth>(down, p.down_weight, [](int n, int k) {
    return row_of(n) * kHidden + k;
  });
  if (threadIdx.x < kHidden) {
    up_bias[threadIdx.x] = rounded(p.up_bias[threadIdx.x]);
  } else if (threadIdx.x < kHidden + kWidth) {
    const int i = threadIdx.x - kHidden;
    down_bias[i] = rounded(p.down_bias[i]);
  }
  __syncthreads();
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const RowDropout dropout(p.dropout, ops::DropoutMap::kActivation);
  for (; row < p.rows; row += stride) {
    uint64_t keys[2] = {};
    if constexpr (kDrops) {
      keys[0] = dropout.row_key(row + g);
      keys[1] = dropout.row_key(row + g + 8);
    }
    Left x[kWidth / 16];
#pragma unroll
    for (int k = 0; k < kWidth / 16; ++k) rows.operand(x[k], k);
    rows.load(p.x, p.rows, row + stride);
    Sum y[kWidth / 8] = {};
#pragma unroll 2
    for (int k = 0; k < kHidden / 16; ++k) {
      Sum hidden[2] = {};
      multiply<Number, kWidth>(hidden, x, up, 16 * k);
      Left a;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 bias = *reinterpret_cast<const float2*>(up_bias + 16 * k +
                                                             8 * half + 2 * t);
#pragma unroll
        for (int side = 0; side < 2; ++side) {
          const float v = rounded(hidden[half][2 * side] + bias.x);
          const float w = rounded(hidden[half][2 * side + 1] + bias.y);
          float2 out = {v * normal(v).below, w * normal(w).below};
          if constexpr (kDrops) {
            const float2 keep =
                dropout.factors(keys[side], 8 * k + 4 * half + t);
            out = {out.x * keep.x, out.y * keep.y};
          }
          a[2 * half + side] = pack<Number>(out.x, out.y);
        }
      }
#pragma unroll
      for (int n = 0; n < kWidth / 16; ++n) {
        Left r;
        Wide::load(r, down, 16 * n, 2 * k);
        add<Number>(y[2 * n], a, r[0], r[2]);
        add<Number>(y[2 * n + 1], a, r[1], r[3]);
      }
    }
    store_rows(y, down_bias, static_cast<uint4*>(p.out), kWidth / 8, row,
               p.rows);
  }
}

constexpr int kRowsBytes = kTokens * Narrow::kRowBytes;
constexpr int kHiddenBytes = kTokens * Wide::kRowBytes;
constexpr int kBackwardBytes =
    2 * kWeightBytes + 2 * 2 * kRowsBytes + 2 * kHiddenBytes;
Parts sums_of(const FeedForward& p, int64_t blocks) {
  return {p.partials, blocks, FeedForward::kGradients, p.gradients};
}

// A block 128 tokens at a time. First each warp's 16 tokens by 64 hidden
// numbers, forward again and back; then the gradients of the weights, half of
// the warps one each, and of x.
template <bool kDrops>
__global__ void __launch_bounds__(kThreads, 1) backward_kernel(FeedForward p) {
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ float up_bias[kHidden];
  const uint32_t up = shared_address(memory), down = up + kWeightBytes;
  const uint32_t stages = down + kWeightBytes;
  const uint32_t active = stages + 2 * 2 * kRowsBytes;
  const uint32_t inner = active + kHiddenBytes;
  const int warp = threadIdx.x / 32;
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kTokens;
  const auto* x = static_cast<const Number*>(p.x);
  const auto* grad = static_cast<const Number*>(p.grad);

  const auto fetch = [&](int64_t token, int stage) {
    if (token < p.rows) {
      const uint32_t tile = stages + stage * 2 * kRowsBytes;
      Narrow::copy<Number, kThreads>(tile, x + token * kWidth, kWidth, kTokens,
                                     p.rows - token, kWidth, threadIdx.x);
      Narrow::copy<Number, kThreads>(tile + kRowsBytes, grad + token * kWidth,
                                     kWidth, kTokens, p.rows - token, kWidth,
                                     threadIdx.x);
    }
    commit_copies();
  };
  int64_t token = static_cast<int64_t>(blockIdx.x) * kTokens;
  fetch(token, 0);
  load_weight<kWidth, kHidden>(up, p.up_weight,
                               [](int n, int k) { return n * kWidth + k; });
  load_weight<kHidden, kWidth>(down, p.down_weight,
                               [](int n, int k) { return n * kHidden + k; });
  if (threadIdx.x < kHidden) {
    up_bias[threadIdx.x] = rounded(p.up_bias[threadIdx.x]);
  }

  WeightSums<2, 2> sums;
  const int m0 = warp % 8 * 16, half = warp / 8;
  // Of the weights' gradients: down's [64,128] by the first eight warps, up's
  // [128,64] by the others.
  const bool of_down = warp < 8;
  const int sums_row = of_down ? warp % 2 * 32 : warp % 4 * 32;
  const int sums_column = of_down ? warp / 2 * 32 : (warp - 8) / 4 * 32;
  const RowDropout dropout(p.dropout, ops::DropoutMap::kActivation);
  int stage = 0;
  for (; token < p.rows; token += stride) {
    uint64_t keys[2] = {};
    if constexpr (kDrops) {
      keys[0] = dropout.row_key(token + m0 + g);
      keys[1] = dropout.row_key(token + m0 + g + 8);
    }
    wait_copies<0>();
    __syncthreads();
    fetch(token + stride, stage ^ 1);
    const uint32_t x_tile = stages + stage * 2 * kRowsBytes;
    const uint32_t grad_tile = x_tile + kRowsBytes;
    {
      Left xs[kWidth / 16], grads[kWidth / 16];
#pragma unroll
      for (int k = 0; k < kWidth / 16; ++k) {
        Narrow::load(xs[k], x_tile, m0, 2 * k);
        Narrow::load(grads[k], grad_tile, m0, 2 * k);
      }
#pragma unroll
      for (int j = 0; j < kHidden / 32; ++j) {
        const int n0 = half * (kHidden / 2) + 16 * j;
        Sum hidden[2] = {}, back[2] = {};
#pragma unroll
        for (int k = 0; k < kWidth / 16; ++k) {
          Left r, s;
          Narrow::load(r, up, n0, 2 * k);
          Wide::load_right(s, down, 16 * k, n0 / 8);
          add<Number>(hidden[0], xs[k], r[0], r[2]);
          add<Number>(hidden[1], xs[k], r[1], r[3]);
          add<Number>(back[0], grads[k], s[0], s[1]);
          add<Number>(back[1], grads[k], s[2], s[3]);
        }
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          const float2 bias =
              *reinterpret_cast<const float2*>(up_bias + n0 + 8 * n + 2 * t);
#pragma unroll
          for (int side = 0; side < 2; ++side) {
            const float v[2] = {rounded(hidden[n][2 * side] + bias.x),
                                rounded(hidden[n][2 * side + 1] + bias.y)};
            float out[2], slope[2];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
              const Normal at = normal(v[i]);
              out[i] = v[i] * at.below;
              slope[i] = rounded(back[n][2 * side + i]) *
                         fmaf(v[i], at.density, at.below);
            }
            if constexpr (kDrops) {
              const float2 keep =
                  dropout.factors(keys[side], n0 / 2 + 4 * n + t);
              out[0] *= keep.x;
              out[1] *= keep.y;
              slope[0] *= keep.x;
              slope[1] *= keep.y;
            }
            const int row = m0 + g + 8 * side;
            Wide::put(active, row, n0 / 8 + n, pack<Number>(out[0], out[1]));
            Wide::put(inner, row, n0 / 8 + n, pack<Number>(slope[0], slope[1]));
          }
        }
      }
    }
    __syncthreads();
    if (of_down) {
      sums.add_stage<Narrow, Wide>(grad_tile, sums_row / 8, active,
                                   sums_column / 8);
    } else {
      sums.add_stage<Wide, Narrow>(inner, sums_row / 8, x_tile,
                                   sums_column / 8);
    }
    multiply_back<kHidden>(inner, up, m0, half * (kWidth / 2), p.grad_x, token,
                           p.rows);
    stage ^= 1;
  }

  float* const to = p.partials + blockIdx.x * FeedForward::kGradients;
  float* const biases = to + 2 * FeedForward::kWeight;
  if (of_down) {
    sums.store(to + FeedForward::kWeight, kHidden, biases + kHidden, sums_row,
               sums_column);
  } else {
    sums.store(to, kWidth, biases, sums_row, sums_column);
  }
}

}  // namespace

int64_t feed_forward_parts(int64_t rows) {
  static const int64_t most =
      blocks_at_once(backward_kernel<true>, kThreads, kBackwardBytes);
  return std::clamp<int64_t>((rows + kTokens - 1) / kTokens, 1, most);
}

void feed_forward(const FeedForward& p, cudaStream_t stream) {
  const auto kernel =
      p.dropout.seed != nullptr ? forward_kernel<true> : forward_kernel<false>;
  static const int64_t most =
      blocks_at_once(forward_kernel<true>, kThreads, kForwardBytes);
  constexpr int64_t kOfBlock = kWarps * 16;
  const auto blocks = static_cast<unsigned>(
      std::clamp<int64_t>((p.rows + kOfBlock - 1) / kOfBlock, 1, most));
  allow_memory(kernel, kForwardBytes);
  kernel<<<blocks, kThreads, kForwardBytes, stream>>>(p);
  check_launch("feed_forward");
}

void feed_forward_backward(const FeedForward& p, cudaStream_t stream) {
  const int64_t blocks = feed_forward_parts(p.rows);
  const auto kernel = p.dropout.seed != nullptr ? backward_kernel<true>
                                                : backward_kernel<false>;
  launch_and_sum(kernel, blocks, kThreads, kBackwardBytes, sums_of(p, blocks),
                 stream, "feed_forward_backward", p);
}

}  // namespace luna::cuda
