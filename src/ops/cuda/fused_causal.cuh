#pragma once

#include "ops/cuda/fused.cuh"
#include "ops/cuda/fused_causal.h"

// What the causal kernels share. Features stand in shared memory in their
// places (place_of_feature), so that products of a query's features, which
// are in registers, find them there, and so that sums over tokens have their
// rows in those places as well.

namespace luna::cuda::fused {

// --- Fragments ---------------------------------------------------------

/// Rows 16 w.. of an operand, for its own warp: `fragment(j, r)` is what the
/// thread has of columns 8 j.. of rows 8 r.., two numbers.
template <typename Fragment>
__device__ __forceinline__ void store_fragments(unsigned char* tile,
                                                const Fragment& fragment) {
  const int lane = threadIdx.x % 32, in_eight = lane % 8;
  const int row = static_cast<int>(threadIdx.x) % kGroup / 32 * 16 +
                  lane / 8 % 2 * 8 + in_eight;
  const uint32_t at = shared_address(tile) + row * kRowBytes;
#pragma unroll
  for (int j = 0; j < 8; j += 2) {
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};\n" ::
            "r"(at + ((j + lane / 16) ^ in_eight) * 16),
        "r"(fragment(j, 0)), "r"(fragment(j, 1)), "r"(fragment(j + 1, 0)),
        "r"(fragment(j + 1, 1))
        : "memory");
  }
}
/// Features as a look-up leaves them, in their places.
__device__ __forceinline__ void store_features(unsigned char* tile,
                                               const uint32_t (&phi)[4][4]) {
  store_fragments(tile,
                  [&](int j, int r) { return phi[2 * r + j / 4][j % 4]; });
}
/// A product, times its rows' factors.
__device__ __forceinline__ void store_product(unsigned char* tile,
                                              const float (&c)[32],
                                              float factor0, float factor1) {
  store_fragments(tile, [&](int j, int r) {
    const float x = r == 0 ? factor0 : factor1;
    return pack(c[4 * j + 2 * r] * x, c[4 * j + 2 * r + 1] * x);
  });
}
/// The warp's rows of a tile in shared memory, where `count` has them.
__device__ __forceinline__ void copy_out(const unsigned char* tile,
                                         const Rows& to, const Tile& t) {
  __syncwarp();
  const int lane = threadIdx.x % 32, chunk = lane % 8;
  const int first = static_cast<int>(threadIdx.x) % kGroup / 32 * 16 + lane / 8;
  __nv_bfloat16* at = static_cast<__nv_bfloat16*>(to.data) +
                      row_at(to, t.batch, t.head, t.row) + chunk * 8;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = first + 4 * i;
    if (row < t.count) {
      *reinterpret_cast<uint4*>(at + row * to.row) =
          *reinterpret_cast<const uint4*>(tile + row * kRowBytes +
                                          (chunk ^ (row & 7)) * 16);
    }
  }
}

/// A product [64 tokens, 64 tokens] as the left side of the next one; columns
/// after the row are left out (before it, with kUpper).
template <bool kUpper>
__device__ __forceinline__ void keep_triangle(const float (&c)[32],
                                              uint32_t (&a)[16]) {
  const int lane = threadIdx.x % 32;
  const int row = static_cast<int>(threadIdx.x) % kGroup / 32 * 16 + lane / 4 -
                  lane % 4 * 2;  // less its columns' offset
#pragma unroll
  for (int j = 0; j < 8; ++j) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const auto kept = [&](int e) {
        const int column = 8 * j + e - 8 * r;
        const bool in = kUpper ? column >= row : column <= row;
        return in ? c[4 * j + 2 * r + e] : 0.f;
      };
      a[2 * j + r] = pack(kept(0), kept(1));
    }
  }
}
/// c += a B, B's rows steps of the depth; a as keep_triangle has it.
__device__ __forceinline__ void multiply_wide(float (&c)[32],
                                              const uint32_t (&a)[16],
                                              const WideOperand& b,
                                              bool accumulate) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    multiply<true>(c, a[4 * k], a[4 * k + 1], a[4 * k + 2], a[4 * k + 3],
                   b.step(k), accumulate || k > 0);
  }
}
/// c = phi B^T, or phi B with kTransposed; B in places.
template <bool kTransposed, typename Operand, int kNumbers>
__device__ __forceinline__ void multiply_features(float (&c)[kNumbers],
                                                  const uint32_t (&phi)[4][4],
                                                  const Operand& b) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const int m = k / 2, j = 2 * (k % 2);
    multiply<kTransposed>(c, phi[m][j], phi[2 + m][j], phi[m][j + 1],
                          phi[2 + m][j + 1], b.step(k), k > 0);
  }
}
/// c (+)= A B^T, both in shared memory, rows along the depth.
__device__ __forceinline__ void multiply_deep(float (&c)[32], uint32_t a,
                                              uint32_t b) {
  const DeepOperand left(a), right(b);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    multiply<false, false>(c, left.step(k), right.step(k), k > 0);
  }
}

// --- Running sums ------------------------------------------------------

__device__ __forceinline__ int feature_of_place(int place) {
  const int m = 2 * (place / 2 % 4) + place / 32;
  return kChannels * m + 4 * (place / 16 % 2) + 2 * (place / 8 % 2) + place % 2;
}
/// Where number n of thread `owner` of a warpgroup stands in [64, 65]; -1: it
/// counts for nothing.
__device__ __forceinline__ int place_in_state(int n, int owner) {
  const int t = owner % 4;
  int row = owner / 32 * 16 + owner % 32 / 4, column = kWidth;
  if (n < 32) {
    row += n / 2 % 2 * 8;
    column = n / 4 * 8 + 2 * t + n % 2;
  } else {
    if (t != 0) return -1;
    row += (n - 32) * 8;
  }
  return feature_of_place(row) * kLd + column;
}

/// Sums of features by columns, their rows in places.
struct Running {
  float s[32] = {};
  float z[4] = {};  ///< columns 0 and 1 are the last column's two parts

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < 32; ++i) s[i] = 0.f;
#pragma unroll
    for (int i = 0; i < 4; ++i) z[i] = 0.f;
  }
  /// x: features, y: columns, last: a narrow operand.
  __device__ __forceinline__ void add(uint32_t x, uint32_t y,
                                      const NarrowOperand& last) {
    const WideOperand left(x), right(y);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      multiply<true, true>(s, left.step(k), right.step(k), 1);
      multiply<true, true>(z, left.step(k), last.step(k), 1);
    }
  }
  __device__ __forceinline__ void load(const Tile& tile, const float* part,
                                       const float* start) {
    const int thread = threadIdx.x % kGroup;
    if (!tile.fresh) {
#pragma unroll
      for (int i = 0; i < 32; ++i) s[i] = part[i * kGroup + thread];
      z[0] = part[32 * kGroup + thread];
      z[2] = part[33 * kGroup + thread];
    } else {
      const float* from =
          start == nullptr
              ? nullptr
              : start + static_cast<int64_t>(tile.state) * kFeatures * kLd;
      const auto number = [&](int n) {
        const int at = place_in_state(n, thread);
        return from == nullptr || at < 0 ? 0.f : from[at];
      };
#pragma unroll
      for (int i = 0; i < 32; ++i) s[i] = number(i);
      z[0] = number(32);
      z[2] = number(33);
    }
    z[1] = z[3] = 0.f;
  }
  __device__ __forceinline__ void write_part(float* part) const {
    const int thread = threadIdx.x % kGroup;
#pragma unroll
    for (int i = 0; i < 32; ++i) part[i * kGroup + thread] = s[i];
    part[32 * kGroup + thread] = z[0] + z[1];
    part[33 * kGroup + thread] = z[2] + z[3];
  }
  __device__ __forceinline__ void write_state(int state, float* states) const {
    const int thread = threadIdx.x % kGroup;
    float* to = states + static_cast<int64_t>(state) * kFeatures * kLd;
#pragma unroll
    for (int i = 0; i < 32; ++i) to[place_in_state(i, thread)] = s[i];
    if (thread % 4 == 0) {
      to[place_in_state(32, thread)] = z[0] + z[1];
      to[place_in_state(33, thread)] = z[2] + z[3];
    }
  }
  /// As an operand; by each warp, its own rows.
  __device__ __forceinline__ void write_operand(unsigned char* to) const {
    store_product(to, s, 1.f, 1.f);
  }
  /// The last column, by feature.
  __device__ __forceinline__ void write_last(float* to) const {
    const int thread = threadIdx.x % kGroup;
    if (thread % 4 != 0) return;
    const int row = thread / 32 * 16 + thread % 32 / 4;
    to[feature_of_place(row)] = z[0] + z[1];
    to[feature_of_place(row + 8)] = z[2] + z[3];
  }
};

// --- Rows --------------------------------------------------------------

/// Two rows of a tile: 16 w + g and 8 more.
struct TwoRows {
  __device__ explicit TwoRows(const Tile& tile)
      : row(static_cast<int>(threadIdx.x) % kGroup / 32 * 16 +
            static_cast<int>(threadIdx.x) % 32 / 4),
        valid{row < tile.count, row + 8 < tile.count} {}
  /// Their numbers, `other` where there are no numbers, 0 where no rows.
  __device__ __forceinline__ void read(const float* data, int64_t batch,
                                       int64_t head, const Tile& tile,
                                       float other, float (&x)[2]) const {
    x[0] = valid[0] ? other : 0.f;
    x[1] = valid[1] ? other : 0.f;
    if (data == nullptr) return;
    const float* from =
        data + tile.batch * batch + tile.head * head + tile.row + row;
    if (valid[0]) x[0] = from[0];
    if (valid[1]) x[1] = from[8];
  }
  int row;
  bool valid[2];
};

/// From denominators to their guarded inverses; 0 for rows that see no key.
__device__ __forceinline__ void invert(const TwoRows& rows, const Tile& tile,
                                       const int64_t* live, float eps,
                                       float (&x)[2]) {
  const int first = live == nullptr ? 0 : static_cast<int>(live[tile.state]);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const bool seeing = tile.offset + rows.row + 8 * r >= first;
    x[r] = rows.valid[r] && seeing ? 1.f / guarded(x[r], eps) : 0.f;
  }
}

/// A narrow operand whose first column is 1. By the first 64 threads.
__device__ __forceinline__ void write_ones(unsigned char* to) {
  if (threadIdx.x < kTokens) {
    reinterpret_cast<uint4*>(to)[threadIdx.x] =
        make_uint4(pack(1.f, 0.f), 0, 0, 0);
  }
}

/// A narrow operand of d's high and low parts.
__device__ __forceinline__ void write_last(unsigned char* to,
                                           const TwoRows& two,
                                           const float (&d)[2]) {
  if (threadIdx.x % 4 != 0) return;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float high = high_part(d[r]);
    *reinterpret_cast<uint32_t*>(to + (two.row + 8 * r) * 16) =
        pack(high, d[r] - high);
  }
}

/// What launches before this one stored is seen by copies that come after.
__device__ __forceinline__ void fence_async_global() {
  asm volatile("fence.proxy.async.global;\n" ::: "memory");
}

size_t causal_forward_memory(const TableShape& shape);
size_t causal_runs_memory(const TableShape& shape);

}  // namespace luna::cuda::fused
