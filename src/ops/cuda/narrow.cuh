#pragma once

#include "ops/cuda/mma.cuh"

// What kernels over rows of 64 numbers have in common. Forward, a warp takes
// 16 rows, and each thread reads and writes neighbouring columns of them: 16 t
// to 16 t + 15 of rows g and g + 8 (mma.cuh). The weights' columns and rows
// are put in the order that makes the products agree with that.

namespace luna::cuda::narrow {

using Number = __nv_bfloat16;
using mma::Left;
using mma::Sum;

constexpr int kRowWidth = 64;
constexpr int kWarps = 16, kThreads = 32 * kWarps;
constexpr int kTokens = 128;            // of a stage, backward
constexpr uint32_t kOnes = 0x3f803f80;  // two numbers 1

__device__ __forceinline__ float rounded(float x) {
  return __bfloat162float(__float2bfloat16_rn(x));
}

/// The column that stands at place k of the sum over columns.
__device__ __forceinline__ int column_of(int k) {
  return k % 8 / 2 * 16 + k / 16 * 4 + k % 16 / 8 * 2 + k % 2;
}
/// The row of a weight that gives the result's column n.
__device__ __forceinline__ int row_of(int n) {
  return n % 8 / 2 * 16 + n / 8 * 2 + n % 2;
}

/// kRows rows of D numbers, rounded; `from` says which number of the weight
/// stands at a row and an even column.
template <int D, int kRows, typename From>
__device__ __forceinline__ void load_weight(uint32_t tile, const float* weight,
                                            const From& from) {
  constexpr int kChunks = mma::Tile<D>::kChunks;
#pragma unroll
  for (int i = threadIdx.x; i < kRows * kChunks; i += kThreads) {
    const int row = i / kChunks, chunk = i % kChunks;
    uint32_t x[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 pair = *reinterpret_cast<const float2*>(
          weight + from(row, 8 * chunk + 2 * j));
      x[j] = mma::pack<Number>(pair.x, pair.y);
    }
    asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};\n" ::"r"(
                     tile + mma::Tile<D>::at(row, chunk)),
                 "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
                 : "memory");
  }
}

/// A thread's numbers of a warp's 16 rows; zeros from the last row on.
struct RowsOfWarp {
  uint4 x[2][2];
  __device__ __forceinline__ void load(const void* data, int64_t rows,
                                       int64_t row) {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const int64_t at = row + threadIdx.x % 32 / 4 + 8 * side;
      const auto* from =
          static_cast<const uint4*>(data) + at * (kRowWidth / 8) + 2 * t;
      x[side][0] = at < rows ? from[0] : uint4{};
      x[side][1] = at < rows ? from[1] : uint4{};
    }
  }
  __device__ __forceinline__ void operand(Left& a, int k) const {
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const uint4& four = x[side][k / 2];
      a[side] = k % 2 == 0 ? four.x : four.z;
      a[side + 2] = k % 2 == 0 ? four.y : four.w;
    }
  }
};

/// y + bias, 64 columns of a warp's 16 rows; `stride`: 16-byte chunks of a row.
__device__ __forceinline__ void store_rows(const Sum (&y)[kRowWidth / 8],
                                           const float* bias, uint4* to,
                                           int64_t stride, int64_t row,
                                           int64_t rows) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int side = 0; side < 2; ++side) {
    const int64_t at = row + g + 8 * side;
    if (at >= rows) continue;
    uint32_t out[8];
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float2 more =
          *reinterpret_cast<const float2*>(bias + 16 * t + 2 * n);
      out[n] = mma::pack<Number>(y[n][2 * side] + more.x,
                                 y[n][2 * side + 1] + more.y);
    }
    to[at * stride + 2 * t] = {out[0], out[1], out[2], out[3]};
    to[at * stride + 2 * t + 1] = {out[4], out[5], out[6], out[7]};
  }
}

/// A warp's part of one weight's gradient, kRows * 16 by kColumns * 16, and of
/// its bias'.
template <int kRows, int kColumns>
struct WeightSums {
  Sum weight[kRows][2 * kColumns] = {}, bias[kRows] = {};

  /// += left^T right over a stage's tokens.
  template <typename LeftTile, typename RightTile>
  __device__ __forceinline__ void add_stage(uint32_t left, int left_chunk,
                                            uint32_t right, int right_chunk) {
#pragma unroll
    for (int row = 0; row < kTokens; row += 16) {
      Left a[kRows];
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        Left r;
        LeftTile::load_right(r, left, row, left_chunk + 2 * i);
        // The block transposed, as a left operand.
        a[i][0] = r[0];
        a[i][1] = r[2];
        a[i][2] = r[1];
        a[i][3] = r[3];
      }
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        Left b;
        RightTile::load_right(b, right, row, right_chunk + 2 * j);
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          mma::add<Number>(weight[i][2 * j], a[i], b[0], b[1]);
          mma::add<Number>(weight[i][2 * j + 1], a[i], b[2], b[3]);
        }
      }
      if (right_chunk == 0) {
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          mma::add<Number>(bias[i], a[i], kOnes, kOnes);
        }
      }
    }
  }

  __device__ __forceinline__ void store(float* to_weight, int width,
                                        float* to_bias, int row0,
                                        int column0) const {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        const int row = row0 + 16 * i + g + 8 * side;
#pragma unroll
        for (int j = 0; j < 2 * kColumns; ++j) {
          *reinterpret_cast<float2*>(to_weight + row * width + column0 + 8 * j +
                                     2 * t) = {weight[i][j][2 * side],
                                               weight[i][j][2 * side + 1]};
        }
        if (column0 == 0 && t == 0) to_bias[row] = bias[i][2 * side];
      }
    }
  }
};

/// Rows [m0, m0 + 16) of a left tile of kHidden numbers times 32 columns, from
/// n0 on, of a weight [kHidden, 64]; to rows of 64 numbers.
template <int kHidden>
__device__ __forceinline__ void multiply_back(uint32_t left, uint32_t weight,
                                              int m0, int n0, void* to,
                                              int64_t token, int64_t rows) {
  using namespace mma;
  Sum back[4] = {};
#pragma unroll
  for (int k = 0; k < kHidden / 16; ++k) {
    Left a;
    Tile<kHidden>::load(a, left, m0, 2 * k);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      Left b;
      Tile<kRowWidth>::load_right(b, weight, 16 * k, n0 / 8 + 2 * j);
      add<Number>(back[2 * j], a, b[0], b[1]);
      add<Number>(back[2 * j + 1], a, b[2], b[3]);
    }
  }
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int side = 0; side < 2; ++side) {
    const int64_t row = token + m0 + g + 8 * side;
    if (row >= rows) continue;
    auto* at = reinterpret_cast<uint32_t*>(static_cast<Number*>(to) +
                                           row * kRowWidth + n0 + 2 * t);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      at[4 * j] = pack<Number>(back[j][2 * side], back[j][2 * side + 1]);
    }
  }
}

}  // namespace luna::cuda::narrow
