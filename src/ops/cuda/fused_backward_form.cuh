#pragma once

#include "ops/cuda/fused.cuh"
#include "ops/cuda/fused_units.cuh"

// Shared memory of the fused backward, its fixed-point sums, and small parts of
// its work.

namespace luna::cuda::fused {

/// A segment is narrow where it is so many times less wide than the numbers
/// are large: all its u count as its middle, and sums of g are enough.
constexpr float kNarrow = 48.f;

/// What the kernels of a width have in shared memory. Warpgroups share a
/// projection, or each has its own head's, which leaves less room.
template <int kNumbers, int kHalves, bool kPerHead>
struct Form {
  static constexpr int kGroups = kNumbers > 64 || kHalves == 2 ? 2
                                 : kNumbers < 64               ? 4
                                 : kPerHead                    ? 2
                                                               : 3;
  static constexpr int kWarps = kGroups * 4;
  static constexpr int kRounds =
      (1 << 16) / (kGroups * kTokens * kHalves * kProjections);
  using Rows = Block<kNumbers>;
  static constexpr bool kAhead = kNumbers <= 64;  // there are two stages
  using BackwardStages = Stages<2, kAhead ? 2 : 1, kNumbers>;
  using ProjectionRows = ProjectionRowsOf<kNumbers, kHalves>;
  using Control = typename BackwardStages::Control;
  static constexpr int kHeadSums =
      static_cast<int>(fused_head_sums(kNumbers, kHalves* kProjections));
  static constexpr int kProjectionBytes =
      (kPerHead ? kGroups : 1) * ProjectionRows::Rows::kBytes;

  /// A half's phi (queries), or its state in another order (keys).
  static constexpr int kExtraBytes =
      Rows::kBytes > kTileBytes ? Rows::kBytes : kTileBytes;
  static constexpr int kCopies = kGroups * kHalves;
  static constexpr int kExtra = kGroups * BackwardStages::kBytes;
  static constexpr int kState = kExtra + kCopies * kExtraBytes;
  static constexpr int kSlopes = kState + kCopies * Rows::kBytes;  // du
  static constexpr int kLast = kSlopes + kCopies * kNarrowBytes;
  static constexpr int kProjection = kLast + kGroups * kNarrowBytes;
  static constexpr int kBack = kProjection + kProjectionBytes;
  static constexpr int kZ = kBack + kProjectionBytes;
  static constexpr int kTops = kZ + kCopies * kFeatures * 4;
  static constexpr int kScale = kTops + 24;
  static constexpr int kBarrier = kTops + 32;
  static constexpr int kControl = kBarrier + 16;
  static constexpr int kTable =
      kControl + (kGroups * static_cast<int>(sizeof(Control)) + 15) / 16 * 16;

  __host__ __device__ explicit Form(const TableShape& shape)
      : segments(static_cast<int>(shape.knots) + 1),
        sums(kTable + (static_cast<int>(Table::bytes(shape)) + 15) / 16 * 16),
        wide(sums + 2 * segments * kSumRow * 4),
        total(wide + segments) {}
  int segments, sums, wide, total;
};

/// phi . c of row r, in all threads of its quad.
template <int kHalves>
__device__ __forceinline__ float row_product(
    const uint32_t (&phi)[kHalves][4][4], const float (&c)[kHalves][32],
    int r) {
  float x = 0.f;
#pragma unroll
  for (int j = 0; j < 8 * kHalves; ++j) {
    const uint32_t pair = phi[j / 8][2 * r + j % 8 / 4][j % 4];
    x = fmaf(low_of(pair), c[j / 8][4 * (j % 8) + 2 * r], x);
    x = fmaf(high_of(pair), c[j / 8][4 * (j % 8) + 2 * r + 1], x);
  }
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

/// dW [M, width] and db [4 warps, M] of a warpgroup, to `to` or added to it;
/// then they are 0.
template <int kNumbers, int kHalves>
__device__ __forceinline__ void add_weights(
    float (&grad_w)[kHalves][Block<kNumbers>::kPieces][4],
    float (&grad_b)[kHalves][2], float* to, bool add) {
  constexpr int kAll = kHalves * kProjections;
  const int lane = threadIdx.x % 32, warp = threadIdx.x % kGroup / 32;
  const int g = lane / 4, t = lane % 4;
  const auto put = [&](int at, float x) { to[at] = add ? to[at] + x : x; };
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    const int m = half * kProjections + 2 * t;
#pragma unroll
    for (int piece = 0; piece < Block<kNumbers>::kPieces; ++piece) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = 64 * piece + 16 * warp + g + i / 2 * 8;
        if (column < kNumbers) {
          put((m + i % 2) * kNumbers + column, grad_w[half][piece][i]);
        }
        grad_w[half][piece][i] = 0.f;
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float x = grad_b[half][i];
      for (int j = 4; j < 32; j *= 2) x += __shfl_xor_sync(0xffffffffu, x, j);
      if (g == 0) put(kAll * kNumbers + warp * kAll + m + i, x);
      grad_b[half][i] = 0.f;
    }
  }
}

}  // namespace luna::cuda::fused
