#pragma once

#include "ops/cuda/fused_table.cuh"
#include "ops/cuda/fused_tiles.cuh"
#include "ops/cuda/launch.h"

// Operands of the fused kernels, what they write, and their launches.

namespace luna::cuda::fused {

// --- Operands ----------------------------------------------------------

/// W's high and low parts as rows 0-7 and 8-15 of an operand; 16 projections
/// as two such halves. By a warpgroup; reading comes first, so that other loads
/// can come between.
template <int kNumbers, int kHalves = 1>
struct ProjectionRowsOf {
  static constexpr int kEach = kHalves * kProjections * kNumbers / kGroup;
  using Rows = Block<kNumbers, kHalves * 2 * kProjections>;
  float w[kEach];

  __device__ __forceinline__ ProjectionRowsOf(const FeatureMap<float>& map,
                                              int head) {
    const float* from = map.weight + (map.per_head ? head : 0) * kHalves *
                                         kProjections * kNumbers;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      w[i] = from[i * kGroup + threadIdx.x % kGroup];
    }
  }
  __device__ __forceinline__ void write(bool columns_in_place,
                                        unsigned char* to) const {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = i * kGroup + threadIdx.x % kGroup;
      const int row = at / kNumbers, column = at % kNumbers;
      const int m = row + row / kProjections * kProjections;
      const int place = columns_in_place ? column : place_of_column(column);
      const float high = high_part(w[i]);
      *reinterpret_cast<__nv_bfloat16*>(to + Rows::at(m, place)) =
          __float2bfloat16_rn(high);
      *reinterpret_cast<__nv_bfloat16*>(to + Rows::at(m + 8, place)) =
          __float2bfloat16_rn(w[i] - high);
    }
  }
};
using ProjectionRows = ProjectionRowsOf<kWidth>;

/// S [64, width + 1]'s first columns as operands of 64 rows, features in their
/// places: with columns as they come, and with columns in their places; either
/// may be null. By a warpgroup.
template <int kNumbers = kWidth>
__device__ __forceinline__ void write_state(const float* __restrict__ state,
                                            unsigned char* plain,
                                            unsigned char* placed) {
  using Rows = Block<kNumbers>;
  constexpr int kTogether = kGroup / kNumbers;  // rows
  const int column = threadIdx.x % kNumbers;
  const int row = threadIdx.x % kGroup / kNumbers;
  const int place = place_of_column(column);
#pragma unroll
  for (int i = 0; i < kFeatures; i += 16 * kTogether) {
    float s[16];
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      s[j] = state[(i + kTogether * j + row) * (kNumbers + 1) + column];
    }
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      const int r = place_of_feature(i + kTogether * j + row);
      const __nv_bfloat16 x = __float2bfloat16_rn(s[j]);
      if (plain != nullptr) {
        *reinterpret_cast<__nv_bfloat16*>(plain + Rows::at(r, column)) = x;
      }
      if (placed != nullptr) {
        *reinterpret_cast<__nv_bfloat16*>(placed + Rows::at(r, place)) = x;
      }
    }
  }
}

/// A feature's number of the normaliser, as the high and low parts in rows 0
/// and 1 of an operand.
__device__ __forceinline__ void write_normalizer(unsigned char* to, int feature,
                                                 float x) {
  const int place = place_of_feature(feature);
  const float high = high_part(x);
  *reinterpret_cast<__nv_bfloat16*>(to + operand_at(0, place)) =
      __float2bfloat16_rn(high);
  *reinterpret_cast<__nv_bfloat16*>(to + operand_at(1, place)) =
      __float2bfloat16_rn(x - high);
}

/// u = x W^T + b of two tokens: [token 0: projections 2 t, 2 t + 1; token 1].
__device__ __forceinline__ void project(const DeepOperand& x,
                                        const DeepOperand& w,
                                        float (&sums)[8]) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    multiply<false, false>(sums, x.step(k), w.step(k), k > 0);
  }
  products_commit();
}
template <int kNumbers, int kHalves>
__device__ __forceinline__ void project_rows(
    const typename Block<kNumbers>::Deep& x,
    const typename ProjectionRowsOf<kNumbers, kHalves>::Rows::Deep& w,
    float (&sums)[8 * kHalves]) {
#pragma unroll
  for (int k = 0; k < kNumbers / 16; ++k) {
    multiply<false, false>(sums, x.step(k), w.step(k), k > 0);
  }
  products_commit();
}
__device__ __forceinline__ void finish_projection(const float (&sums)[8],
                                                  const float (&bias)[2],
                                                  float (&u)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) u[i] = sums[i] + sums[4 + i] + bias[i % 2];
}

/// The projections of a half.
template <int kHalves>
__device__ __forceinline__ void finish_half(const float (&sums)[8 * kHalves],
                                            int half, const float (&bias)[2],
                                            float (&u)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    u[i] = sums[8 * half + i] + sums[8 * half + 4 + i] + bias[i % 2];
  }
}
/// Of thread t's projections.
template <int kHalves>
__device__ __forceinline__ void read_bias(const FeatureMap<float>& map,
                                          int head, float (&bias)[kHalves][2]) {
  const float* from = map.bias + head * kHalves * kProjections;
#pragma unroll
  for (int i = 0; i < 2 * kHalves; ++i) {
    bias[i / 2][i % 2] =
        from[i / 2 * kProjections + 2 * (threadIdx.x % 4) + i % 2];
  }
}

/// Sums of features by columns, as the products leave them: to the state, or
/// to a part. Of 128 features each half has sums of its own.
template <int kNumbers, int kHalves = 1>
struct SumsOf {
  using Rows = Block<kNumbers>;
  static constexpr int kPiece = Rows::kPieceNumbers / 2;
  static constexpr int kEach = kNumbers / 2;
  float s[kEach] = {};
  float z[4] = {};  ///< columns 0 and 1 are the last column's two parts

  __device__ __forceinline__ float (&piece(int i))[kPiece] {
    return *reinterpret_cast<float(*)[kPiece]>(s + i * kPiece);
  }
  /// s, then z.
  __device__ __forceinline__ float (&all())[kEach + 4] {
    static_assert(sizeof(SumsOf) == (kEach + 4) * sizeof(float));
    return *reinterpret_cast<float(*)[kEach + 4]>(this);
  }
  /// As write_state makes them of the state.
  __device__ __forceinline__ void write_operands(unsigned char* plain,
                                                 unsigned char* placed) const {
    const int thread = threadIdx.x % kGroup;
    const int g = thread % 32 / 4, t = thread % 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = place_of_feature(thread / 32 * 16 + g + 8 * r);
#pragma unroll
      for (int j = 0; j < kNumbers / 32; ++j) {
        uint32_t x[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const float* from = s + 4 * (4 * j + k) + 2 * r;
          x[k] = pack(from[0], from[1]);
          if (plain != nullptr) {
            *reinterpret_cast<uint32_t*>(
                plain + Rows::at(row, 32 * j + 8 * k + 2 * t)) = x[k];
          }
        }
        // Columns in their places: these are neighbours.
        if (placed != nullptr) {
          *reinterpret_cast<uint4*>(placed + Rows::chunk_at(row, 4 * j + t)) =
              make_uint4(x[0], x[1], x[2], x[3]);
        }
      }
    }
  }
  /// Calls `put(feature, z)` in one thread for each.
  template <typename Put>
  __device__ __forceinline__ void each_last(const Put& put) const {
    const int thread = threadIdx.x % kGroup;
    if (thread % 4 != 0) return;
    const int feature = thread / 32 * 16 + thread % 32 / 4;
    put(feature, z[0] + z[1]);
    put(feature + 8, z[2] + z[3]);
  }
  __device__ __forceinline__ void write(const Tile& tile, float* states,
                                        float* parts, int worker,
                                        int half = 0) {
    constexpr int kLd = kNumbers + 1;
    const int thread = threadIdx.x % kGroup;
    const int g = thread % 32 / 4, t = thread % 4;
    const float z0 = z[0] + z[1], z1 = z[2] + z[3];
    if (tile.from_start && tile.end) {
      const int row = thread / 32 * 16 + g;
      float* at = states +
                  (static_cast<int64_t>(tile.state) * kHalves + half) *
                      kFeatures * kLd +
                  row * kLd;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        at[(i / 2 % 2) * 8 * kLd + i / 4 * 8 + 2 * t + i % 2] = s[i];
      }
      if (t == 0) {
        at[kNumbers] = z0;
        at[8 * kLd + kNumbers] = z1;
      }
    } else {
      float* at =
          parts +
          ((2 * static_cast<int64_t>(worker) + (tile.from_start ? 1 : 0)) *
               kHalves +
           half) *
              fused_part(kNumbers) +
          thread;
#pragma unroll
      for (int i = 0; i < kEach; ++i) at[i * kGroup] = s[i];
      at[kEach * kGroup] = z0;
      at[(kEach + 1) * kGroup] = z1;
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) s[i] = 0.f;
#pragma unroll
    for (int i = 0; i < 4; ++i) z[i] = 0.f;
  }
};
using Sums = SumsOf<kWidth>;

/// Rows 16 w + g and 16 w + g + 8 of a tile, where `count` has them: thread t
/// of a quad has numbers 8 t.., 32 + 8 t.. of them, as products leave them.
struct TileRows {
  __device__ TileRows(const Rows& rows, const Tile& tile)
      : row(static_cast<int>(threadIdx.x % kGroup / 32 * 16 +
                             threadIdx.x % 32 / 4)),
        count(tile.count),
        stride(rows.row),
        at(reinterpret_cast<uint4*>(
               static_cast<__nv_bfloat16*>(rows.data) +
               row_at(rows, tile.batch, tile.head, tile.row + row)) +
           threadIdx.x % 4) {}
  /// Numbers 2 kCount.. of the rows, from a piece on.
  template <int kCount>
  __device__ __forceinline__ void store(const float (&c)[kCount], float factor0,
                                        float factor1, int piece = 0) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (row + 8 * r >= count) break;
      const float factor = r == 0 ? factor0 : factor1;
      uint4* to = at + r * stride + piece * 8;  // 8 rows of 8 numbers a word
#pragma unroll
      for (int part = 0; part < kCount / 16; ++part) {
        uint32_t x[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int i = (4 * part + j) * 4 + 2 * r;
          x[j] = pack(c[i] * factor, c[i + 1] * factor);
        }
        to[4 * part] = make_uint4(x[0], x[1], x[2], x[3]);
      }
    }
  }
  int row, count;
  int64_t stride;
  uint4* at;
};

// --- Launches ----------------------------------------------------------

/// A block for each multiprocessor, where there is work for it.
inline int blocks_of(const FusedTiles& tiles) {
  const int64_t all = tiles.tiles.bound * tiles.heads, most = multiprocessors();
  return static_cast<int>(all < most ? all : most);
}

/// Calls `body` with the width and the halves of features as constants.
template <typename Body>
auto for_form(const FeatureMap<float>& map, Body body) {
  if (map.projections == 2 * kProjections) {
    if (map.width == 32) return body.template operator()<32, 2>();
    return body.template operator()<64, 2>();
  }
  if (map.width == 32) return body.template operator()<32, 1>();
  if (map.width == 64) return body.template operator()<64, 1>();
  return body.template operator()<128, 1>();
}

size_t forward_memory(const FeatureMap<float>& map);

}  // namespace luna::cuda::fused
