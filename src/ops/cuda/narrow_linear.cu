// At the speed of memory, which general products are far from where rows are
// so narrow: forward each number is read and written once, and backward one
// reading of the rows gives the gradients of x, weight and bias.

#include "ops/cuda/narrow_linear.h"

#include <algorithm>

#include "ops/cuda/narrow.cuh"
#include "ops/cuda/parts.cuh"

namespace luna::cuda {
namespace {

using namespace mma;
using namespace narrow;

constexpr int kWidth = NarrowLinear::kWidth;
static_assert(kWidth == kRowWidth);
using Rows = Tile<kWidth>;
constexpr int kWeightBytes = 2 * kWidth * kWidth;

// A warp 16 rows at a time.
template <int kBlocks>
__global__ void __launch_bounds__(kThreads, 1) forward_kernel(NarrowLinear p) {
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ float bias[kBlocks * kWidth];
  const uint32_t weights = shared_address(memory);
  const int warp = threadIdx.x / 32;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kWarps * 16;
  int64_t row = (static_cast<int64_t>(blockIdx.x) * kWarps + warp) * 16;
  RowsOfWarp rows;
  rows.load(p.x, p.rows, row);
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
    load_weight<kWidth, kWidth>(
        weights + block * kWeightBytes, p.weight[block],
        [](int n, int k) { return row_of(n) * kWidth + column_of(k); });
    if (threadIdx.x < kWidth) {
      bias[block * kWidth + threadIdx.x] = rounded(p.bias[block][threadIdx.x]);
    }
  }
  __syncthreads();
  for (; row < p.rows; row += stride) {
    Left x[kWidth / 16];
#pragma unroll
    for (int k = 0; k < kWidth / 16; ++k) rows.operand(x[k], k);
    rows.load(p.x, p.rows, row + stride);
#pragma unroll 1
    for (int block = 0; block < kBlocks; ++block) {
      Sum y[kWidth / 8] = {};
#pragma unroll
      for (int n = 0; n < kWidth / 16; ++n) {
        Sum(&two)[2] = reinterpret_cast<Sum(&)[2]>(y[2 * n]);
        multiply<Number, kWidth>(two, x, weights + block * kWeightBytes,
                                 16 * n);
      }
      store_rows(y, bias + block * kWidth,
                 static_cast<uint4*>(p.out) + block * (kWidth / 8),
                 kBlocks * (kWidth / 8), row, p.rows);
    }
  }
}

template <int kBlocks>
struct Backward {
  static constexpr int kOut = kBlocks * kWidth;
  using Grads = Tile<kOut>;
  static constexpr int kGradBytes = kTokens * Grads::kRowBytes;
  static constexpr int kRowsBytes = kTokens * Rows::kRowBytes;
  static constexpr int kBytes =
      kBlocks * kWeightBytes + 2 * (kGradBytes + kRowsBytes);
};

Parts sums_of(const NarrowLinear& p, int64_t blocks) {
  return {p.partials, blocks, NarrowLinear::numbers(p.blocks), p.gradients};
}

// A block 128 tokens at a time; of the weight's gradient a warp has a quarter
// of the rows and of the columns.
template <int kBlocks>
__global__ void __launch_bounds__(kThreads, 1) backward_kernel(NarrowLinear p) {
  using B = Backward<kBlocks>;
  extern __shared__ __align__(128) unsigned char memory[];
  const uint32_t weights = shared_address(memory);
  const uint32_t stages = weights + kBlocks * kWeightBytes;
  const int warp = threadIdx.x / 32;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kTokens;
  const auto* x = static_cast<const Number*>(p.x);
  const auto* grad = static_cast<const Number*>(p.grad);

  const auto fetch = [&](int64_t token, int stage) {
    if (token < p.rows) {
      const uint32_t tile = stages + stage * (B::kGradBytes + B::kRowsBytes);
      B::Grads::template copy<Number, kThreads>(
          tile, grad + token * B::kOut, B::kOut, kTokens, p.rows - token,
          B::kOut, threadIdx.x);
      Rows::copy<Number, kThreads>(tile + B::kGradBytes, x + token * kWidth,
                                   kWidth, kTokens, p.rows - token, kWidth,
                                   threadIdx.x);
    }
    commit_copies();
  };
  int64_t token = static_cast<int64_t>(blockIdx.x) * kTokens;
  fetch(token, 0);
  if (p.grad_x != nullptr) {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      load_weight<kWidth, kWidth>(weights + block * kWeightBytes,
                                  p.weight[block],
                                  [](int n, int k) { return n * kWidth + k; });
    }
  }
  WeightSums<kBlocks, 1> sums;
  const int sums_row = warp % 4 * (16 * kBlocks), sums_column = warp / 4 * 16;
  int stage = 0;
  for (; token < p.rows; token += stride) {
    wait_copies<0>();
    __syncthreads();
    fetch(token + stride, stage ^ 1);
    const uint32_t tile = stages + stage * (B::kGradBytes + B::kRowsBytes);
    sums.template add_stage<typename B::Grads, Rows>(
        tile, sums_row / 8, tile + B::kGradBytes, sums_column / 8);
    if (p.grad_x != nullptr) {
      multiply_back<B::kOut>(tile, weights, warp % 8 * 16,
                             warp / 8 * (kWidth / 2), p.grad_x, token, p.rows);
    }
    stage ^= 1;
  }
  constexpr int kNumbers = NarrowLinear::numbers(kBlocks);
  float* const to = p.partials + blockIdx.x * kNumbers;
  sums.store(to, kWidth, to + B::kOut * kWidth, sums_row, sums_column);
}

template <typename Body>
auto with_blocks(int blocks, Body body) {
  switch (blocks) {
    case 1:
      return body.template operator()<1>();
    case 2:
      return body.template operator()<2>();
    default:
      return body.template operator()<3>();
  }
}

}  // namespace

int64_t narrow_linear_parts(int64_t rows, int blocks) {
  return with_blocks(blocks, [&]<int kBlocks>() {
    static const int64_t most = blocks_at_once(
        backward_kernel<kBlocks>, kThreads, Backward<kBlocks>::kBytes);
    return std::clamp<int64_t>((rows + kTokens - 1) / kTokens, 1, most);
  });
}

void narrow_linear(const NarrowLinear& p, cudaStream_t stream) {
  with_blocks(p.blocks, [&]<int kBlocks>() {
    constexpr int kBytes = kBlocks * kWeightBytes;
    static const int64_t most =
        blocks_at_once(forward_kernel<kBlocks>, kThreads, kBytes);
    constexpr int64_t kOfBlock = kWarps * 16;
    const auto blocks = static_cast<unsigned>(
        std::clamp<int64_t>((p.rows + kOfBlock - 1) / kOfBlock, 1, most));
    allow_memory(forward_kernel<kBlocks>, kBytes);
    forward_kernel<kBlocks><<<blocks, kThreads, kBytes, stream>>>(p);
  });
  check_launch("narrow_linear");
}

void narrow_linear_backward(const NarrowLinear& p, cudaStream_t stream) {
  with_blocks(p.blocks, [&]<int kBlocks>() {
    const int64_t blocks = narrow_linear_parts(p.rows, p.blocks);
    launch_and_sum(backward_kernel<kBlocks>, blocks, kThreads,
                   Backward<kBlocks>::kBytes, sums_of(p, blocks), stream,
                   "narrow_linear_backward", p);
  });
}

}  // namespace luna::cuda
