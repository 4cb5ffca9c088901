#pragma once

#include "ops/cuda/fused.cuh"
#include "ops/cuda/fused_pieces.cuh"
#include "ops/cuda/fused_units.cuh"

// From the gradient of features to that of u, and the sums of it per piece of
// a segment and channel: 32-bit integers in shared memory, so that the order of
// additions does not matter. The block's warpgroups take their tiles in rounds,
// and each waits for the others' largest number before it adds its own. The
// unit stays while the largest is between 2^10 and 2^20 units and all that was
// added could not overflow; else the sums are put away and it is chosen anew.
// (Causal sums begin with few keys: their first rows have gradients a thousand
// times the later ones'.) Sums of g u are a piece's middle times the sum of g;
// only the first and the last piece, which have no middle, add them up.

namespace luna::cuda::fused {

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

/// What look-ups give. Slopes are read again when they are wanted, where
/// keeping them would push more out of registers.
template <int kHalves>
struct Found {
  int piece[kHalves][4];
  uint4 slope[kHalves][4];
  uint32_t phi[kHalves][4][4];
  float u[kHalves][4], unit[kHalves][4];

  __device__ __forceinline__ void look_up(const Table& table, int half,
                                          const float (&weight)[2]) {
    table.look_up(u[half], weight, piece[half], phi[half], slope[half],
                  unit[half]);
  }
};

/// kSteep: the first numbers may be far larger than the rest. kWindows: numbers
/// of one size and of another come by turns, over `window` rounds; the unit is
/// the larger one's.
template <int kGroups, int kHalves, bool kSteep, bool kWindows = false>
struct PieceSums {
  static constexpr int kWarps = kGroups * 4;
  /// Rounds whose largest is 2^kUnitBits units; one of 2^kMoreBits times that
  /// counts as so many.
  static constexpr int kRounds =
      0x7fffffff / ((kGroups * kTokens * kHalves * kProjections) << kUnitBits);
  static constexpr int kMoreBits = kRounds >= 64 ? 6 : 5;
  static constexpr int kFewerBits = 4;
  static constexpr int kSumBytes = kSumRow * 4;

  struct Control {
    uint64_t barrier;
    int tops[6];
    int ends[2 * kSumRow];  ///< sums of g u
  };
  /// Of shared memory, with the table.
  static __host__ __device__ int bytes(const TableShape& shape, int rows) {
    return PieceImage::bytes(shape, rows) + rows * kSumBytes;
  }
  /// As many pieces as `room` bytes hold.
  static __host__ __device__ int rows_in(const TableShape& shape, int room) {
    constexpr int kMost = 1024;
    const int rows =
        (room - PieceImage::bytes(shape, 0) - 16) / (40 + kSumBytes);
    return rows < kMost ? rows : kMost;
  }

  __device__ PieceSums(const FeatureMap<float>& map, const PieceImage& image,
                       int rows, Control& control, unsigned char* memory,
                       float* part)
      : table(map, memory, rows, image.header->grid),
        control(control),
        first(PieceImage::first_in(memory, map.shape, rows)),
        ends{image.header->ends[0], image.header->ends[1]},
        segments(static_cast<int>(map.shape.knots) + 1),
        factor(map.factor),
        uncut(map.nonneg ? 0u : 0x00010001u),
        sums(reinterpret_cast<int*>(memory +
                                    PieceImage::bytes(map.shape, rows))),
        part(part) {
    image.load<kGroups * kGroup>(map.shape, rows, memory);
    for (int i = threadIdx.x; i < rows * kSumRow; i += kGroups * kGroup) {
      sums[i] = 0;
    }
    if (threadIdx.x < 6) control.tops[threadIdx.x] = 0;
    if (threadIdx.x < 2 * kSumRow) control.ends[threadIdx.x] = 0;
  }
  /// By thread 0; a barrier of the block comes after, as after the rest.
  static __device__ void init(Control& control) {
    barrier_init(shared_address(&control.barrier), kWarps);
    barrier_init_fence();
  }

  /// c: the gradient of features, but for their rows' factors. Where a feature
  /// is cut off it becomes 0.
  template <bool kSlopesKept>
  __device__ __forceinline__ void to_slopes(int round, const Found<kHalves>& x,
                                            float (&c)[kHalves][32],
                                            const float (&row)[2],
                                            float (&du)[kHalves][4]) {
    float top = 0.f, top_u = 0.f;
#pragma unroll
    for (int m = 0; m < 4 * kHalves; ++m) {
      const int half = m / 4, n = m % 4, piece = x.piece[half][n];
      const uint4 slope = kSlopesKept ? x.slope[half][n] : table.slopes[piece];
      const uint32_t pairs[4] = {slope.x, slope.y, slope.z, slope.w};
      float total = 0.f, most = 0.f;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float* g = &c[half][4 * (4 * (n % 2) + i) + 2 * (n / 2)];
        const uint32_t pair = x.phi[half][n][i] | uncut;
        const float2 s = halves(pairs[i]);
        g[0] = (pair & 0x7fffu) != 0 ? g[0] : 0.f;
        g[1] = (pair & 0x7fff0000u) != 0 ? g[1] : 0.f;
        total = fmaf(g[1], s.y, fmaf(g[0], s.x, total));
        most = fmaxf(most, fmaxf(fabsf(g[0]), fabsf(g[1])));
      }
      const float unit =
          kSlopesKept ? x.unit[half][n] : table.unit_of(table.entry[piece].y);
      du[half][n] = total * (unit * row[n / 2]);
      most *= fabsf(row[n / 2]);
      // fmaxf drops NaN: keep what is not a number as infinity.
      if (!(fabsf(du[half][n]) <= 3e38f)) most = INFINITY;
      top = fmaxf(top, most);
      if (is_end(piece)) top_u = fmaxf(top_u, most * fabsf(x.u[half][n]));
    }
    announce(round, top, top_u);
  }
  /// On the units of a round, before its numbers are added.
  __device__ __forceinline__ void agree(int round) {
    wait(shared_address(&control.barrier), round & 1);
    const int seen = exponent_above(control.tops[round % 3 * 2]);
    const int seen_u = exponent_above(control.tops[round % 3 * 2 + 1]);
    if (threadIdx.x < 2) control.tops[(round + 2) % 3 * 2 + threadIdx.x] = 0;
    if (seen_u > unit_u) {
      const int shift = min(seen_u - unit_u, 31);
      unit_u = seen_u;
      __syncthreads();  // the last round's are added
      if (threadIdx.x < 2 * kSumRow) {
        int& sum = control.ends[threadIdx.x];
        sum = (sum + (1 << (shift - 1))) >> shift;
      }
      __syncthreads();
    }
    const int more = seen - unit;
    most_seen = kWindows ? max(most_seen, seen) : seen;
    const bool whole = !kWindows || (round + 1) % window == 0;
    const int most = most_seen;
    if (whole) most_seen = kNone;
    if ((!whole || most - unit >= -kFewerBits || most == kNone) &&
        more <= kMoreBits && rounds_added + (1 << max(more, 0)) <= kRounds) {
      rounds_added += 1 << max(more, 0);
      return;
    }
    if (rounds_added > 0) put();
    const bool first_round = unit == kNone;
    unit = most;
    if (seen != kInfinite && (first_round ? kSteep : more > kMoreBits)) {
      unit -= kMoreBits;
    }
    rounds_added = 1 << max(seen - unit, 0);
  }
  __device__ __forceinline__ void add(const Found<kHalves>& x,
                                      const float (&c)[kHalves][32],
                                      const float (&row)[2]) {
    const uint32_t sums_at = shared_address(sums);
    const float units = to_units(unit);
#pragma unroll
    for (int m = 0; m < 4 * kHalves; ++m) {
      const int half = m / 4, n = m % 4, piece = x.piece[half][n];
      const auto number = [&](int i) {
        return c[half][4 * (4 * (n % 2) + i / 2) + 2 * (n / 2) + i % 2];
      };
      const float y = row[n / 2] * units;
      const uint32_t at = sums_at + piece * kSumBytes;
#pragma unroll
      for (int i = 0; i < kChannels; ++i) {
        add_rounded(at + 4 * i, y, number(i));
      }
      if (is_end(piece)) {
        const float y_u = row[n / 2] * x.u[half][n] * to_units(unit_u);
        const uint32_t end =
            shared_address(control.ends) + (piece <= ends[0] ? 0 : kSumBytes);
#pragma unroll
        for (int i = 0; i < kChannels; ++i) {
          add_rounded(end + 4 * i, y_u, number(i));
        }
      }
    }
    __syncwarp();
  }
  /// Of a warpgroup that has had its last tile: the others' rounds.
  __device__ void finish(int round, int rounds) {
    for (; round < rounds; ++round) {
      announce(round, 0.f, 0.f);
      agree(round);
    }
    if (rounds_added > 0 || !put_away) put();
  }

  Table table;
  Control& control;
  const uint16_t* first;  ///< of each segment's pieces
  int ends[2];            ///< pieces up to the first and from the second on
  int segments;
  float factor;
  uint32_t uncut;  ///< a feature that was cut to 0 has no gradient
  int* sums;
  float* part;
  int unit = kNone, unit_u = kNone;  // exponents
  int rounds_added = 0;
  bool put_away = false;
  int window = 1, most_seen = kNone;

 private:
  __device__ __forceinline__ bool is_end(int piece) const {
    return piece <= ends[0] || piece >= ends[1];
  }
  __device__ __forceinline__ void announce(int round, float top, float top_u) {
    const int most = __reduce_max_sync(0xffffffffu, __float_as_int(top));
    const int most_u = __reduce_max_sync(0xffffffffu, __float_as_int(top_u));
    if (threadIdx.x % 32 == 0) {
      atomicMax(&control.tops[round % 3 * 2], most);
      if (most_u != 0) atomicMax(&control.tops[round % 3 * 2 + 1], most_u);
      arrive(shared_address(&control.barrier));
    }
    __syncwarp();
  }
  /// To the block's own part, by segments, in float32, and back to 0.
  __device__ void put() {
    __syncthreads();
    const float scale = of_unit(unit) * factor;
    const float scale_u = of_unit(unit_u) * factor;
    const bool finite = unit < kInfinite && unit_u < kInfinite;
    for (int i = threadIdx.x; i < segments; i += kGroups * kGroup) {
      float x[2 * kChannels] = {};  // of g, of g u
      for (int j = first[i]; j < first[i + 1]; ++j) {
        const float middle =
            j > ends[0] && j < ends[1]
                ? .5f * (table.entry[j - 1].x + table.entry[j].x)
                : 0.f;
#pragma unroll
        for (int c = 0; c < kChannels; ++c) {
          int& sum = sums[j * kSumRow + c];
          const float y = static_cast<float>(sum) * scale;
          x[c] += y;
          x[kChannels + c] = fmaf(y, middle, x[kChannels + c]);
          sum = 0;
        }
        if (j != ends[0] && j != ends[1]) continue;
#pragma unroll
        for (int c = 0; c < kChannels; ++c) {
          int& sum = control.ends[(j == ends[0] ? 0 : kSumRow) + c];
          x[kChannels + c] += static_cast<float>(sum) * scale_u;
          sum = 0;
        }
      }
      auto* to = reinterpret_cast<float4*>(part + i * 2 * kChannels);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        float4 y = finite ? make_float4(x[4 * k], x[4 * k + 1], x[4 * k + 2],
                                        x[4 * k + 3])
                          : make_float4(NAN, NAN, NAN, NAN);
        if (put_away) {
          const float4 z = to[k];
          y = make_float4(y.x + z.x, y.y + z.y, y.z + z.z, y.w + z.w);
        }
        to[k] = y;
      }
    }
    put_away = true;
    rounds_added = 0;
    __syncthreads();
  }
};

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
/// dW and db of the block's warpgroups to `weights`; `memory` is free.
template <int kNumbers, int kHalves, int kGroups>
__device__ __forceinline__ void write_weights(
    float (&grad_w)[kHalves][Block<kNumbers>::kPieces][4],
    float (&grad_b)[kHalves][2], unsigned char* memory, float* weights) {
  constexpr int kAll = kHalves * kProjections, kWeights = kAll * kNumbers;
  constexpr int kEach = static_cast<int>(fused_head_sums(kNumbers, kAll));
  auto* all = reinterpret_cast<float*>(memory);
  __syncthreads();
  add_weights<kNumbers, kHalves>(grad_w, grad_b,
                                 all + threadIdx.x / kGroup * kEach, false);
  __syncthreads();
  for (int i = threadIdx.x; i < kWeights + kAll; i += kGroups * kGroup) {
    const int copies = i < kWeights ? 1 : 4;  // a warp's each
    float x = 0.f;
    for (int j = 0; j < kGroups * copies; ++j) {
      x += all[j / copies * kEach + i + j % copies * kAll];
    }
    weights[i] = x;
  }
}

}  // namespace luna::cuda::fused
