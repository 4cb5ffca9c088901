#include "ops/cuda/linear_gradients.h"

#include <algorithm>

#include "ops/cuda/launch.h"
#include "ops/cuda/mma.cuh"

namespace luna::cuda {
namespace {

using namespace mma;
using Number = __nv_bfloat16;
using Rows = Tile<64>;

constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int kTokens = 64;  // of a stage
constexpr int kStages = 3;
constexpr int kSide = 64;  // a block's part of the weight: 64 x 64
constexpr int kTileBytes = kTokens * Rows::kRowBytes;
constexpr uint32_t kOnes = 0x3f803f80;  // two numbers 1

constexpr int64_t kBlocks = 396;           // three on each of 132
constexpr int64_t kWidest = 4 * 64 * 128;  // out * in

// A block: 64 rows of the weight (blockIdx.y) by 64 columns (blockIdx.z), of
// one piece of the tokens. A warp: 16 rows by 32 columns.
__global__ void __launch_bounds__(kThreads)
    gradients_kernel(LinearGradients p, int64_t piece) {
  extern __shared__ __align__(128) unsigned char memory[];
  const uint32_t tiles = shared_address(memory);
  const int warp = threadIdx.x / 32, strip = warp % 4, half = warp / 4;
  const int64_t out0 = static_cast<int64_t>(blockIdx.y) * kSide;
  const int64_t in0 = static_cast<int64_t>(blockIdx.z) * kSide;
  const int64_t first = blockIdx.x * piece;
  const int64_t last = first + piece < p.rows ? first + piece : p.rows;
  const auto* up = static_cast<const Number*>(p.up) + out0;
  const auto* x = static_cast<const Number*>(p.x) + in0;
  const int out_width = static_cast<int>(p.out - out0);
  const int in_width = static_cast<int>(p.in - in0);

  const auto fetch = [&](int64_t token, int stage) {
    if (token < last) {
      const uint32_t tile = tiles + stage * 2 * kTileBytes;
      Rows::copy<Number, kThreads>(tile, up + token * p.out, p.out, kTokens,
                                   last - token, out_width, threadIdx.x);
      Rows::copy<Number, kThreads>(tile + kTileBytes, x + token * p.in, p.in,
                                   kTokens, last - token, in_width,
                                   threadIdx.x);
    }
    commit_copies();
  };
  for (int stage = 0; stage < kStages - 1; ++stage) {
    fetch(first + stage * kTokens, stage);
  }
  Sum weight[4] = {}, bias = {};
  int stage = 0;
  for (int64_t token = first; token < last; token += kTokens) {
    wait_copies<kStages - 2>();
    __syncthreads();
    fetch(token + (kStages - 1) * kTokens, (stage + kStages - 1) % kStages);
    const uint32_t tile = tiles + stage * 2 * kTileBytes;
#pragma unroll
    for (int row = 0; row < kTokens; row += 16) {
      Left r, a, b;
      Rows::load_right(r, tile, row, 2 * strip);
      // The block transposed, as a left operand.
      a[0] = r[0];
      a[1] = r[2];
      a[2] = r[1];
      a[3] = r[3];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        Rows::load_right(b, tile + kTileBytes, row, 4 * half + 2 * i);
        add<Number>(weight[2 * i], a, b[0], b[1]);
        add<Number>(weight[2 * i + 1], a, b[2], b[3]);
      }
      if (half == 0) add<Number>(bias, a, kOnes, kOnes);
    }
    stage = (stage + 1) % kStages;
  }

  float* const to = p.partials + blockIdx.x * (p.out * p.in + p.out);
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int side = 0; side < 2; ++side) {
    const int64_t row = out0 + 16 * strip + g + 8 * side;
    if (row >= p.out) continue;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t column = in0 + 32 * half + 8 * i + 2 * t;
      if (column >= p.in) continue;
      *reinterpret_cast<float2*>(to + row * p.in + column) = {
          weight[i][2 * side], weight[i][2 * side + 1]};
    }
    if (half == 0 && t == 0 && blockIdx.z == 0) {
      to[p.out * p.in + row] = bias[2 * side];
    }
  }
}

int64_t squares(int64_t out, int64_t in) {
  return ((out + kSide - 1) / kSide) * ((in + kSide - 1) / kSide);
}

}  // namespace

int64_t linear_gradient_pieces(int64_t rows, int64_t out, int64_t in) {
  if (rows < kTokens || out % 8 != 0 || in % 8 != 0 || out * in > kWidest) {
    return 0;
  }
  const int64_t fill = std::max<int64_t>(kBlocks / squares(out, in), 1);
  return std::min((rows + 2 * kTokens - 1) / (2 * kTokens), fill);
}

void linear_gradients(const LinearGradients& p, cudaStream_t stream) {
  const int64_t tiles = (p.rows + kTokens - 1) / kTokens;
  const int64_t piece = (tiles + p.pieces - 1) / p.pieces * kTokens;
  constexpr int kBytes = kStages * 2 * kTileBytes;
  cudaFuncSetAttribute(gradients_kernel,
                       cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  const dim3 blocks(static_cast<unsigned>(p.pieces),
                    static_cast<unsigned>((p.out + kSide - 1) / kSide),
                    static_cast<unsigned>((p.in + kSide - 1) / kSide));
  gradients_kernel<<<blocks, kThreads, kBytes, stream>>>(p, piece);
  check_launch("linear_gradients");
}

}  // namespace luna::cuda
