#pragma once

#include "ops/cuda/fused_causal.cuh"
#include "ops/cuda/fused_units.cuh"

// From the gradient of features to that of u, and the sums of it per segment
// and channel: 32-bit integers in shared memory, so that the order of
// additions does not matter. Their unit follows the largest number the block
// has met: its warpgroups take their tiles in rounds, and each waits for the
// others' largest before it adds its own. 2^14 units are at least that number,
// and 2^16 numbers are added before the sums are put away, so nothing can
// overflow. g u is added up only in segments that are not narrow.

namespace luna::cuda::fused {

/// A segment is narrow where it is so many times less wide than the numbers
/// are large: all its u count as its middle, and sums of g are enough.
constexpr float kNarrow = 32.f;

/// phi . c of row r, in all threads of its quad.
__device__ __forceinline__ float row_product(const uint32_t (&phi)[4][4],
                                             const float (&c)[32], int r) {
  float x = 0.f;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const uint32_t pair = phi[2 * r + j / 4][j % 4];
    x = fmaf(low_of(pair), c[4 * j + 2 * r], x);
    x = fmaf(high_of(pair), c[4 * j + 2 * r + 1], x);
  }
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

/// What a look-up gives and is kept. Slopes are read again when they are
/// wanted: that is cheaper than what keeping them would push out of registers.
struct Found {
  int segment[4];
  uint32_t phi[4][4];
  float u[4];

  __device__ __forceinline__ void look_up(const Table& table,
                                          const float (&weight)[2]) {
    uint4 slope[4];
    float unit[4];
    table.look_up(u, weight, segment, phi, slope, unit);
  }
};

template <int kGroups>
struct SegmentSums {
  static constexpr int kWarps = kGroups * 4;
  static constexpr int kRounds = (1 << 16) / (kGroups * kTokens * kProjections);

  struct Control {
    int tops[6];
    int least_scale, unused;
    uint64_t barrier;
  };
  static __host__ __device__ int64_t bytes(const TableShape& shape) {
    return (shape.knots + 1) * (2 * kSumRow * 4 + 1);
  }

  __device__ SegmentSums(const Table& table, const FeatureMap<float>& map,
                         Control& control, unsigned char* memory, float* part)
      : table(table),
        control(control),
        segments(static_cast<int>(map.shape.knots) + 1),
        factor(map.factor),
        cut(map.nonneg ? 0.f : -1.f),
        sums(reinterpret_cast<int*>(memory)),
        wide(memory + 2 * segments * kSumRow * 4),
        part(part) {}
  /// By the whole block; a barrier comes after.
  __device__ void init() {
    for (int i = threadIdx.x; i < 2 * segments * kSumRow; i += blockDim.x) {
      sums[i] = 0;
    }
    for (int i = threadIdx.x; i < segments; i += blockDim.x) wide[i] = 1;
    if (threadIdx.x < 6) control.tops[threadIdx.x] = 0;
    if (threadIdx.x == 0) {
      control.least_scale = kNoScale;
      barrier_init(shared_address(&control.barrier), kWarps);
      barrier_init_fence();
    }
  }

  /// In the first round: the least of the warps' mean squares of u.
  __device__ __forceinline__ void judge(const float (&u)[4],
                                        const bool (&valid)[2]) {
    float square = u[0] * u[0] + u[1] * u[1];
    square = valid[1] ? square + u[2] * u[2] + u[3] * u[3] : 2.f * square;
    square = warp_sum(valid[0] ? square : INFINITY);
    if (threadIdx.x % 32 == 0) {
      atomicMin(&control.least_scale, __float_as_int(square / 128.f));
    }
  }
  __device__ __forceinline__ void announce(int round, float top, float top_u) {
    const int most = __reduce_max_sync(0xffffffffu, __float_as_int(top));
    const int most_u = __reduce_max_sync(0xffffffffu, __float_as_int(top_u));
    if (threadIdx.x % 32 == 0) {
      atomicMax(&control.tops[round % 3 * 2], most);
      atomicMax(&control.tops[round % 3 * 2 + 1], most_u);
      arrive(shared_address(&control.barrier));
    }
    __syncwarp();
  }
  /// Older sums move to a larger unit.
  __device__ __forceinline__ void agree(int round) {
    wait(shared_address(&control.barrier), round & 1);
    const int seen[2] = {exponent_above(control.tops[round % 3 * 2]),
                         exponent_above(control.tops[round % 3 * 2 + 1])};
    if (threadIdx.x < 2) control.tops[(round + 2) % 3 * 2 + threadIdx.x] = 0;
    if (round == 0) {
      const float scale = control.least_scale == kNoScale
                              ? 0.f
                              : __int_as_float(control.least_scale);
      for (int i = threadIdx.x; i < segments; i += blockDim.x) {
        const float width =
            i == 0 ? INFINITY : table.entry[i].x - table.entry[i - 1].x;
        wide[i] = !(kNarrow * kNarrow * width * width <= scale);
      }
      __syncthreads();
    }
    if (seen[0] <= unit[0] && seen[1] <= unit[1]) return;
    for (int i = 0; i < 2; ++i) {
      const int shift = min(max(seen[i] - unit[i], 0), 31);
      unit[i] = max(unit[i], seen[i]);
      if (shift == 0) continue;
      int* from = sums + i * segments * kSumRow;
      for (int j = threadIdx.x; j < segments * kSumRow; j += blockDim.x) {
        from[j] = (from[j] + (1 << (shift - 1))) >> shift;
      }
    }
    __syncthreads();
  }
  /// c: the gradient of features, but for its rows' factors. Where a feature
  /// is cut off it becomes 0.
  __device__ __forceinline__ void to_slopes(int round, const Found& x,
                                            float (&c)[32],
                                            const float (&row)[2],
                                            float (&du)[4]) {
    float top = 0.f, top_u = 0.f;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const uint4 slope = table.slopes[x.segment[n]];
      const float slope_unit = __int_as_float(
          __float_as_int(table.entry[x.segment[n]].y) << 23 & 0x7f800000);
      const uint32_t pairs[4] = {slope.x, slope.y, slope.z, slope.w};
      float total = 0.f, most = 0.f;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float* g = &c[4 * (4 * (n % 2) + i) + 2 * (n / 2)];
        const float2 s = halves(pairs[i]);
        g[0] = !(fabsf(low_of(x.phi[n][i])) <= cut) ? g[0] : 0.f;
        g[1] = !(fabsf(high_of(x.phi[n][i])) <= cut) ? g[1] : 0.f;
        total = fmaf(g[1], s.y, fmaf(g[0], s.x, total));
        most = fmaxf(most, fmaxf(fabsf(g[0]), fabsf(g[1])));
      }
      du[n] = total * (slope_unit * row[n / 2]);
      most *= fabsf(row[n / 2]);
      // fmaxf drops NaN: keep what is not a number as infinity.
      if (!(fabsf(du[n]) <= 3e38f)) most = INFINITY;
      top = fmaxf(top, most);
      top_u = fmaxf(top_u, most * fabsf(x.u[n]));
    }
    announce(round, top, top_u);
  }
  __device__ __forceinline__ void add(const Found& x, const float (&c)[32],
                                      const float (&row)[2]) {
    const uint32_t sums_at = shared_address(sums);
    const uint32_t sums_u_at = sums_at + segments * kSumRow * 4;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const float y = row[n / 2] * to_units(unit[0]);
      const float y_u = row[n / 2] * x.u[n] * to_units(unit[1]);
      const uint32_t at = x.segment[n] * (kSumRow * 4);
      const auto number = [&](int i) {
        return c[4 * (4 * (n % 2) + i / 2) + 2 * (n / 2) + i % 2];
      };
#pragma unroll
      for (int i = 0; i < kChannels; ++i) {
        add_rounded(sums_at + at + 4 * i, y, number(i));
      }
      if (wide[x.segment[n]]) {
#pragma unroll
        for (int i = 0; i < kChannels; ++i) {
          add_rounded(sums_u_at + at + 4 * i, y_u, number(i));
        }
      }
    }
    __syncwarp();
  }
  __device__ __forceinline__ void end_round() {
    if (++rounds_added == kRounds) put();
  }
  /// Of a warpgroup that has had its last tile: the others' rounds.
  __device__ void finish(int round, int rounds) {
    for (; round < rounds; ++round) {
      announce(round, 0.f, 0.f);
      agree(round);
      end_round();
    }
    if (rounds_added > 0 || !put_away) put();
  }

  const Table& table;
  Control& control;
  int segments;
  float factor, cut;  ///< a feature at most `cut` from 0 has no gradient
  int* sums;
  unsigned char* wide;
  float* part;
  int unit[2] = {kNone, kNone};  // exponents
  int rounds_added = 0;
  bool put_away = false;

 private:
  /// To the block's own part, in float32, and back to 0.
  __device__ void put() {
    __syncthreads();
    const float scale = of_unit(unit[0]) * factor;
    const float scale_u = of_unit(unit[1]) * factor;
    const bool finite = unit[0] < kInfinite && unit[1] < kInfinite;
    for (int i = threadIdx.x; i < segments * kChannels; i += blockDim.x) {
      const int segment = i / kChannels, column = i % kChannels;
      int* at = sums + segment * kSumRow + column;
      int* at_u = at + segments * kSumRow;
      float x = static_cast<float>(*at) * scale;
      float x_u = static_cast<float>(*at_u) * scale_u;
      *at = 0;
      *at_u = 0;
      if (!wide[segment]) {
        x_u = x * (.5f * (table.entry[segment - 1].x + table.entry[segment].x));
      }
      if (!finite) x = x_u = NAN;
      float* to = part + segment * 2 * kChannels + column;
      to[0] = put_away ? to[0] + x : x;
      to[kChannels] = put_away ? to[kChannels] + x_u : x_u;
    }
    put_away = true;
    rounds_added = 0;
    __syncthreads();
  }
};

/// dW and db of the block, after the sums per segment; `memory` is free.
template <int kGroups>
__device__ __forceinline__ void write_projection_sums(const float (&grad_w)[4],
                                                      const float (&grad_b)[2],
                                                      unsigned char* memory,
                                                      float* weights) {
  constexpr int kRow = kWidth + 1;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int warp = threadIdx.x % kGroup / 32, group = threadIdx.x / kGroup;
  __syncthreads();
  auto* all = reinterpret_cast<float*>(memory);  // [groups][8][65]
  float* mine = all + group * kProjections * kRow;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    mine[(2 * t + i % 2) * kRow + 16 * warp + g + i / 2 * 8] = grad_w[i];
  }
  float* biases = all + kGroups * kProjections * kRow;  // [warps][8]
#pragma unroll
  for (int m = 0; m < 2; ++m) {
    float x = grad_b[m];
    for (int i = 4; i < 32; i *= 2) x += __shfl_xor_sync(0xffffffffu, x, i);
    if (g == 0) biases[threadIdx.x / 32 * kProjections + 2 * t + m] = x;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kProjections * kRow; i += blockDim.x) {
    const int m = i / kRow, column = i % kRow;
    float x = 0.f;
    if (column < kWidth) {
      for (int j = 0; j < kGroups; ++j) x += all[j * kProjections * kRow + i];
      weights[m * kWidth + column] = x;
    } else {
      for (int j = 0; j < kGroups * 4; ++j) x += biases[j * kProjections + m];
      weights[kProjections * kWidth + m] = x;
    }
  }
  __syncthreads();
}

}  // namespace luna::cuda::fused
