#pragma once

#include "ops/cuda/dropout.cuh"
#include "ops/cuda/mma.cuh"
#include "ops/cuda/nested_mma.h"
#include "ops/cuda/tile.cuh"

// What the kernels of nested_mma.h share. A group of G warps walks a piece of
// tokens, 16 at a time; each warp has 16 slots of its own, whose sums over
// what was walked it keeps in registers: slots g and g + 8 by pairs of columns,
// the layout of a product's result and, rounded, that of a right operand.

namespace luna::cuda::nested_mma {

using mma::Left;
using mma::Sum;
using T = __nv_bfloat16;
constexpr int D = 64;
using Tile = mma::Tile<D>;
constexpr int kColumns = D / 8, kDepth = D / 16;
constexpr int kTileBytes = 16 * Tile::kRowBytes;
constexpr int kWarps = 8;
constexpr int kBlock = 32 * kWarps;
constexpr float kLog2E = 1.44269504088896340736f;
constexpr int kLd = D + 8;  // of rows that warps add up: no bank twice

using State = Sum[kColumns];  ///< of 16 slots

/// The numbers of a piece that a thread has: [kColumns][4][32] of each state.
constexpr int kStateSize = kColumns * 4 * 32;
__device__ __forceinline__ void load_state(State& s, const float* from) {
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      s[c][i] = from[(c * 4 + i) * 32 + threadIdx.x % 32];
    }
  }
}
__device__ __forceinline__ void store_state(const State& s, float* to) {
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      to[(c * 4 + i) * 32 + threadIdx.x % 32] = s[c][i];
    }
  }
}

__device__ __forceinline__ float log2_1p(float z) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(1.f + z));
  const float near =
      z * kLog2E * fmaf(z, fmaf(z, fmaf(z, -.25f, 1.f / 3), -.5f), 1.f);
  return z < .03f ? near : y;
}
__device__ __forceinline__ float omega(bool elu, float x, float& slope) {
  const bool positive = x > 0.f;
  if (elu) {
    const float e = mma::power((positive ? 0.f : x) * kLog2E);
    slope = positive ? 1.f : e;
    return positive ? x + 1.f : e;
  }
  // log2(1 + 2^x) = max(x, 0) + log2(1 + 2^-|x|): nothing can overflow.
  const float z = mma::power(positive ? -x : x);
  slope = __fdividef(positive ? 1.f : z, 1.f + z);
  return log2_1p(z) + (positive ? x : 0.f);
}

/// Where a group works.
template <int G>
struct Walk {
  __device__ Walk(const NestedMma& p)
      : warp(threadIdx.x / 32),
        group(warp / G),
        lane(threadIdx.x % 32),
        g(lane / 4),
        t(lane % 4),
        own(warp % G * 16) {
    const int64_t work =
        static_cast<int64_t>(blockIdx.x) * (kWarps / G) + group;
    number = work / p.heads;
    head = work % p.heads;
    live = number < p.pieces.bound && locate(p.pieces, number, piece);
    if (!live) return;
    begin = piece.begin + piece.offset;
    count = static_cast<int>(piece.count);
    chunks = (count + 15) / 16;
    before = (p.count == nullptr ? 0 : p.count[piece.sequence]) + piece.offset;
  }
  __device__ void barrier() const { mma::group_barrier<G>(group); }
  __device__ const T* rows(const Rows& r, int chunk) const {
    return static_cast<const T*>(r.data) +
           row_at(r, piece.batch, head, begin + chunk * 16);
  }
  __device__ void copy(uint32_t tile, const Rows& r, int chunk,
                       int width) const {
    Tile::template copy<T, 32 * G>(tile, rows(r, chunk), r.row, 16,
                                   count - chunk * 16, width,
                                   threadIdx.x % (32 * G));
  }
  /// This warp's share of a piece's sums.
  __device__ float* state(float* states, const NestedMma& p) const {
    return states + ((number * p.heads + head) * G + warp % G) * 2 * kStateSize;
  }
  /// 1 / position of token g + 8 h of a chunk.
  __device__ float inverse(int chunk, int h) const {
    return __fdividef(1.f,
                      static_cast<float>(before + chunk * 16 + g + 8 * h + 1));
  }

  int warp, group, lane, g, t, own;
  int64_t number = 0, head = 0, begin = 0, before = 0;
  int count = 0, chunks = 0;
  Piece piece;
  bool live;
};

/// The memory's rows of this warp's slots, as left operands.
__device__ __forceinline__ void load_packed(Left (&x)[kDepth], const Rows& rows,
                                            int64_t sequence, int64_t head,
                                            int own, int64_t slots,
                                            int64_t width) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const T* from =
      static_cast<const T*>(rows.data) + row_at(rows, sequence, head, 0);
#pragma unroll
  for (int k = 0; k < kDepth; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int slot = own + g + 8 * (i % 2);
      const int column = 16 * k + 2 * t + 8 * (i / 2);
      x[k][i] = slot < slots && column < width
                    ? *reinterpret_cast<const uint32_t*>(
                          from + slot * rows.row + column)
                    : 0u;
    }
  }
}

/// a^T of a chunk: slots by tokens, rounded. As a left operand it is a^T; as
/// the right one of tokens by slots: columns 0-7 (a[0], a[2]), 8-15 (a[1],
/// a[3]).
template <int G>
__device__ __forceinline__ void pack_map(Left& a, const NestedMma& p,
                                         const Walk<G>& w,
                                         const Keep<float>& keep,
                                         const Left (&packed)[kDepth],
                                         uint32_t tile, int chunk) {
  Sum s[2] = {};
  mma::multiply<T, D>(s, packed, tile, 0);
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int slot = w.own + w.g + 8 * (i / 2);
      const int token = chunk * 16 + 8 * n + 2 * w.t + i % 2;
      float slope, x = omega(p.elu, s[n][i] * p.scale, slope);
      if (keep.on) x *= keep(w.before + token, slot);
      s[n][i] = slot < p.slots ? x : 0.f;
    }
  }
  mma::to_left<T>(a, s[0], s[1]);
}

/// Where a result's rows are tokens and its columns tokens too: what is not
/// behind its row, or not before it.
template <bool kBackwards>
__device__ __forceinline__ void cut_triangle(Sum (&s)[2]) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = g + 8 * (i / 2), column = 8 * n + 2 * t + i % 2;
      if (kBackwards ? column < row : column > row) s[n][i] = 0.f;
    }
  }
}

/// out += left, 16 by 16, times the rows of a tile.
__device__ __forceinline__ void add_rows(State& out, const Left& left,
                                         uint32_t tile) {
#pragma unroll
  for (int c = 0; c < kColumns; c += 2) {
    Left r;
    Tile::load_right(r, tile, 0, c);
    mma::add<T>(out[c], left, r[0], r[1]);
    mma::add<T>(out[c + 1], left, r[2], r[3]);
  }
}
/// s += x, 16 by D, times the state's columns: tokens by slots.
__device__ __forceinline__ void times_state(Sum (&s)[2],
                                            const Left (&x)[kDepth],
                                            const State& state) {
#pragma unroll
  for (int k = 0; k < kDepth; ++k) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      mma::add<T>(
          s[n], x[k],
          mma::pack<T>(state[2 * k][2 * n], state[2 * k][2 * n + 1]),
          mma::pack<T>(state[2 * k + 1][2 * n], state[2 * k + 1][2 * n + 1]));
    }
  }
}
/// out += left, tokens by slots, times the state.
__device__ __forceinline__ void add_state(State& out, const Left& left,
                                          const State& state) {
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    mma::add<T>(out[c], left,
                mma::transposed(mma::pack<T>(state[c][0], state[c][1])),
                mma::transposed(mma::pack<T>(state[c][2], state[c][3])));
  }
}

/// The product of a tile's rows with another's: tokens by tokens.
__device__ __forceinline__ void token_products(Sum (&s)[2],
                                               const Left (&x)[kDepth],
                                               uint32_t tile) {
  mma::multiply<T, D>(s, x, tile, 0);
}
__device__ __forceinline__ void load_rows(Left (&x)[kDepth], uint32_t tile) {
#pragma unroll
  for (int k = 0; k < kDepth; ++k) Tile::load(x[k], tile, 0, 2 * k);
}

/// One number for each of a thread's two rows, the group's greatest or sum.
/// `exchange`: [2][G][16] floats, of which calls take turns.
template <int G, bool kMax>
__device__ __forceinline__ void across(float (&x)[2], float* exchange,
                                       int& turn, const Walk<G>& w) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    x[h] = kMax ? mma::row_max(x[h]) : mma::row_sum(x[h]);
  }
  if constexpr (G > 1) {
    float* numbers = exchange + turn * G * 16;
    turn ^= 1;
    if (w.t == 0) {
      numbers[w.warp % G * 16 + w.g] = x[0];
      numbers[w.warp % G * 16 + w.g + 8] = x[1];
    }
    w.barrier();
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float y = numbers[w.g + 8 * h];
#pragma unroll
      for (int i = 1; i < G; ++i) {
        const float z = numbers[i * 16 + w.g + 8 * h];
        y = kMax ? fmaxf(y, z) : y + z;
      }
      x[h] = y;
    }
  }
}

/// w = softmax of gain * u over the slots that take part, not yet dropped.
template <int G>
__device__ __forceinline__ void slot_softmax(Sum (&u)[2],
                                             const float (&gain)[2],
                                             const NestedMma& p,
                                             const bool* mask, float* exchange,
                                             int& turn, const Walk<G>& w) {
  float top[2] = {-1e38f, -1e38f}, sum[2] = {};
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int slot = w.own + 8 * n + 2 * w.t + i % 2;
      u[n][i] = __fmul_rn(u[n][i], gain[i / 2] * kLog2E);
      if (slot >= p.slots || (mask != nullptr && !mask[slot])) {
        u[n][i] = -INFINITY;
      }
      top[i / 2] = fmaxf(top[i / 2], u[n][i]);
    }
  }
  across<G, true>(top, exchange, turn, w);
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      u[n][i] = mma::power(u[n][i] - top[i / 2]);
      sum[i / 2] += u[n][i];
    }
  }
  across<G, false>(sum, exchange, turn, w);
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float s = sum[i / 2];
      u[n][i] *= s == 0.f ? 0.f : __fdividef(1.f, fmaxf(s, 1e-37f));
    }
  }
}

/// The group's sum of its warps' rows, to global memory. `room`: 16 rows of
/// kLd floats for each warp (G > 1), or of 16-bit numbers in a tile's order.
template <int G>
__device__ __forceinline__ void leave(const State& x, const float (&gain)[2],
                                      unsigned char* room, const Rows& to,
                                      const Walk<G>& w, int chunk, int width) {
  T* rows = const_cast<T*>(w.rows(to, chunk));
  const int64_t count = w.count - chunk * 16;
  w.barrier();  // whoever read `room` last is done
  if constexpr (G == 1) {
    const uint32_t tile = mma::shared_address(room);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        Tile::put(
            tile, w.g + 8 * h, c,
            mma::pack<T>(x[c][2 * h] * gain[h], x[c][2 * h + 1] * gain[h]));
      }
    }
    __syncwarp();
    Tile::template store<T>(tile, rows, to.row, 16, count, width);
  } else {
    auto* sums = reinterpret_cast<float*>(room);
    float* own = sums + w.warp % G * 16 * kLd;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        *reinterpret_cast<float2*>(own + (w.g + 8 * h) * kLd + 8 * c +
                                   2 * w.t) =
            make_float2(x[c][2 * h] * gain[h], x[c][2 * h + 1] * gain[h]);
      }
    }
    w.barrier();
    for (int i = threadIdx.x % (32 * G); i < 16 * D / 4; i += 32 * G) {
      const int row = i / (D / 4), column = i % (D / 4) * 4;
      float4 y = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
      for (int j = 0; j < G; ++j) {
        const float4 z = *reinterpret_cast<const float4*>(
            sums + (j * 16 + row) * kLd + column);
        y = make_float4(y.x + z.x, y.y + z.y, y.z + z.z, y.w + z.w);
      }
      if (row < count && column < width) {
        *reinterpret_cast<uint2*>(rows + row * to.row + column) =
            make_uint2(mma::pack<T>(y.x, y.y), mma::pack<T>(y.z, y.w));
      }
    }
  }
}

/// Bytes of `room`.
template <int G>
constexpr int kRoom = G == 1 ? kTileBytes : G * 16 * kLd * 4;
/// Bytes of `exchange`.
template <int G>
constexpr int kExchange = G == 1 ? 0 : 2 * G * 16 * 4;

template <int G, typename Kernel>
void launch(Kernel kernel, const NestedMma& p, size_t memory,
            cudaStream_t stream, const char* name) {
  const int64_t work = p.pieces.bound * p.heads;
  if (work == 0) return;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       static_cast<int>(memory));
  kernel<<<static_cast<unsigned>(blocks_for(work, kWarps / G)), kBlock, memory,
           stream>>>(p);
  check_launch(name);
}

/// Calls `body` with the group's size.
template <typename Body>
void dispatch_groups(int64_t slots, Body body) {
  switch (nested_mma_groups(slots)) {
    case 1:
      return body.template operator()<1>();
    case 2:
      return body.template operator()<2>();
    case 4:
      return body.template operator()<4>();
    default:
      return body.template operator()<8>();
  }
}

}  // namespace luna::cuda::nested_mma
