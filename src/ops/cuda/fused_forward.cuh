#pragma once

#include "ops/cuda/fused.cuh"

// What the forward does with a tile of keys and values, and with one of
// queries.

namespace luna::cuda::fused {

/// Features take the place of the keys they came from, where they find room
/// there: a warp's products read the rows that it alone writes.
template <int kNumbers, int kHalves>
struct KeyRoom {
  /// Halves of the features that find room in the keys' place.
  static constexpr int kInPlace = kNumbers < kFeatures ? 0 : 1;
  /// What the others need in a stage.
  static constexpr int kMore = (kHalves - kInPlace) * Block<kFeatures>::kBytes;
  /// Where in a stage a half is.
  static constexpr int features_at(int half) {
    return half < kInPlace ? 0
                           : 2 * Block<kNumbers>::kBytes +
                                 (half - kInPlace) * Block<kFeatures>::kBytes;
  }
};

/// A column of ones for the sums of features, with 7 of zeros: as columns of
/// the values' product, or for a product of its own.
template <int kNumbers>
struct Ones {
  static constexpr bool kWithValues = kNumbers == 64;
  static constexpr int kBytes =
      kWithValues ? 16 * Block<kNumbers>::kRowBytes : kNarrowBytes;
  /// By the whole block; a barrier comes after.
  __device__ static void write(unsigned char* to) {
    const int row = threadIdx.x;
    if (row >= (kWithValues ? 16 : kTokens)) return;
    const int at = kWithValues ? Block<kNumbers>::chunk_at(row, 0) : row * 16;
    *reinterpret_cast<uint4*>(to + at) = make_uint4(pack(1.f, 0.f), 0, 0, 0);
  }
};

/// Weights of a thread's two keys; 0 beyond the tile's end.
__device__ __forceinline__ void read_weights(const Factor<float>& weights,
                                             const Tile& tile, int row,
                                             float (&weight)[2]) {
  weight[0] = row < tile.count ? 1.f : 0.f;
  weight[1] = row + 8 < tile.count ? 1.f : 0.f;
  if (weights.data != nullptr) {
    const float* from = weights.data + tile.batch * weights.batch +
                        tile.head * weights.head + tile.row + row;
    if (row < tile.count) weight[0] = from[0];
    if (row + 8 < tile.count) weight[1] = from[8];
  }
}

/// S += phi^T V, both from shared memory: keys' projections are there, and
/// `ones` (Ones) stand after the tile. `more` starts what need not wait for
/// these products.
template <int kNumbers, int kHalves, typename More>
__device__ __forceinline__ void add_keys(
    const float (&projected)[8 * kHalves], const float (&bias)[kHalves][2],
    const float (&weight)[2], const Table& table, unsigned char* rows,
    uint32_t ones, int group, SumsOf<kNumbers, kHalves>* sums,
    const More& more) {
  using Rows = Block<kNumbers>;
  using Room = KeyRoom<kNumbers, kHalves>;
  const int lane = threadIdx.x % 32, t = lane % 4;
  const int row = threadIdx.x % kGroup / 32 * 16 + lane / 4;
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    float u[4];
    finish_half<kHalves>(projected, half, bias[half], u);
    int segment[4];
    uint32_t phi[4][4];
    uint4 slope[4];
    float unit[4];
    table.look_up(u, weight, segment, phi, slope, unit);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      *reinterpret_cast<uint4*>(
          rows + Room::features_at(half) +
          Block<kFeatures>::chunk_at(row + n / 2 * 8, 2 * t + n % 2)) =
          make_uint4(phi[n][0], phi[n][1], phi[n][2], phi[n][3]);
    }
  }
  fence_async();
  group_barrier(group);
  products_begin();
  const uint32_t values_at = shared_address(rows + Rows::kBytes);
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    const WideOperand features(shared_address(rows) + Room::features_at(half));
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if constexpr (Ones<kNumbers>::kWithValues) {
        const WiderOperand values(values_at, ones);
        multiply<true, true>(sums[half].all(), features.step(k), values.step(k),
                             1);
      } else {
        const typename Rows::Wide values(values_at);
#pragma unroll
        for (int j = 0; j < Rows::kPieces; ++j) {
          multiply<true, true>(sums[half].piece(j), features.step(k),
                               values.step(k, j), 1);
        }
        multiply<true, true>(sums[half].z, features.step(k),
                             NarrowOperand(ones).step(k), 1);
      }
    }
  }
  products_commit();
  more();
  products_wait<0>();
}

/// Where the forward leaves denominators; null: not wanted.
struct Denominators {
  float* data;
  int64_t batch, head;
};

/// out = phi(q) S / guarded(phi(q) z): queries' projections are there.
template <int kNumbers, int kHalves, typename More>
__device__ __forceinline__ void answer_queries(
    const float (&projected)[8 * kHalves], const float (&bias)[kHalves][2],
    const Table& table, const unsigned char* state,
    const unsigned char* normalizer, const Rows& out_rows,
    const Denominators& denominators, float eps, const Tile& tile,
    const More& more) {
  using Operands = Block<kNumbers>;
  const int lane = threadIdx.x % 32, t = lane % 4;
  float u[4];
  uint32_t phi[kHalves][4][4];
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    finish_half<kHalves>(projected, half, bias[half], u);
    int segment[4];
    uint4 slope[4];
    float unit[4];
    table.look_up(u, {1.f, 1.f}, segment, phi[half], slope, unit);
  }
  const TileRows out(out_rows, tile);
  float d[4], inverse[2];
#pragma unroll
  for (int j = 0; j < Operands::kPieces; ++j) {
    float c[Operands::kPieceNumbers / 2];
    products_begin();
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const DeepOperand z(shared_address(normalizer + half * 1024));
      const typename Operands::Wide s(
          shared_address(state + half * Operands::kBytes));
      const auto& f = phi[half];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int m = k / 2, i = 2 * (k % 2), later = half + k > 0;
        if (j == 0) {
          multiply<false>(d, f[m][i], f[2 + m][i], f[m][i + 1], f[2 + m][i + 1],
                          z.step(k), later);
        }
        multiply<true>(c, f[m][i], f[2 + m][i], f[m][i + 1], f[2 + m][i + 1],
                       s.step(k, j), later);
      }
    }
    products_commit();
    if (j == 0) more();
    products_wait<0>();
    if (j == 0) {  // thread 0 of the quad has the denominator's two parts
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        d[r] = __shfl_sync(0xffffffffu, d[2 * r] + d[2 * r + 1], lane & ~3);
        inverse[r] = 1.f / guarded(d[r], eps);
      }
    }
    out.store(c, inverse[0], inverse[1], j);
  }
  if (denominators.data != nullptr && t == 0) {
    float* to = denominators.data + tile.batch * denominators.batch +
                tile.head * denominators.head + tile.row + out.row;
    if (out.row < tile.count) to[0] = d[0];
    if (out.row + 8 < tile.count) to[8] = d[1];
  }
}

}  // namespace luna::cuda::fused
