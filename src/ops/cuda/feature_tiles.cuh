#pragma once

#include "ops/cuda/feature_tiles.h"
#include "ops/cuda/split_product.cuh"

// What the feature map's tiled kernels share. Thread 4 g + t of a warp has
// tokens g and g + 8 of the warp's 16 and projections 2 t and 2 t + 1 of each
// eight. Rows are float32 in shared memory; products are exact float32, or
// those of split_product.cuh.

namespace luna::cuda::features {

constexpr int kWarps = 8;
static_assert(kThreads == 32 * kWarps);

/// How channels lie in the rows of features: any number of them, one, or
/// eights that start at words.
enum class Channels { kAny, kOne, kEights };
/// Eights of projections that a warp has at once.
constexpr int at_once(Channels kind) {
  return kind == Channels::kEights ? 1 : 2;
}

/// A left operand from rows of 16 neighbours.
__device__ __forceinline__ void load_left(SplitLeft& to, const float* from,
                                          int stride) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    to.put(i, Split(*reinterpret_cast<const float2*>(
                  from + (g + i % 2 * 8) * stride + i / 2 * 8 + 2 * t)));
  }
}

/// u of 16 tokens from x on and up to kAtOnce eights of projections.
template <bool kExact, int kAtOnce>
__device__ __forceinline__ void project(const float* x, const float* weights,
                                        const float* biases,
                                        const FeatureTiles& tiles, int eights,
                                        float (&u)[kAtOnce][4]) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const int stride = tiles.columns + 8;
#pragma unroll
  for (int j = 0; j < kAtOnce; ++j) {
    u[j][0] = u[j][1] = u[j][2] = u[j][3] = 0.f;
  }
  if constexpr (kExact) {
    const auto row = [](const float* from, int k) {
      return *reinterpret_cast<const float4*>(from + k);
    };
    const auto add = [](float& to, float4 a, float4 b) {
      to = fmaf(a.x, b.x, to);
      to = fmaf(a.y, b.y, to);
      to = fmaf(a.z, b.z, to);
      to = fmaf(a.w, b.w, to);
    };
    for (int k = 0; k < tiles.columns; k += 4) {
      const float4 x0 = row(x + g * stride, k);
      const float4 x1 = row(x + (g + 8) * stride, k);
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        if (j >= eights) break;
        const float4 w0 = row(weights + (8 * j + 2 * t) * stride, k);
        const float4 w1 = row(weights + (8 * j + 2 * t + 1) * stride, k);
        add(u[j][0], x0, w0);
        add(u[j][1], x0, w1);
        add(u[j][2], x1, w0);
        add(u[j][3], x1, w1);
      }
    }
  } else {
    for (int k = 0; k < tiles.columns; k += 16) {
      SplitLeft rows;
      load_left(rows, x + k, stride);
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        if (j >= eights) break;
        const float* w = weights + (8 * j + g) * stride + k + 2 * t;
        multiply(u[j], rows, FullSplit(*reinterpret_cast<const float2*>(w)),
                 FullSplit(*reinterpret_cast<const float2*>(w + 8)));
      }
    }
  }
#pragma unroll
  for (int j = 0; j < kAtOnce; ++j) {
    if (j >= eights) break;
#pragma unroll
    for (int i = 0; i < 4; ++i) u[j][i] += biases[8 * j + 2 * t + i % 2];
  }
}

/// psi by channel, as the way back reads it: floats of the lines
/// [channels, hidden + 1] of (slope, intercept) between a channel's own knots,
/// and of the index [knots + 1, channels] of 16 bits, which of its own segments
/// one of all is part of. Where all channels have the same knots, there is
/// none.
__host__ __device__ inline int64_t own_lines(const TableShape& s) {
  return 2 * s.channels * sum_segments(s, Knots::kOwn);
}
__host__ __device__ inline bool same_knots(const TableShape& s) {
  return s.trunks == 1;
}
__host__ __device__ inline int64_t index_entries(const TableShape& s) {
  return same_knots(s) ? 0 : (s.knots + 1) * s.channels;
}
__host__ __device__ inline int64_t own_index(const TableShape& s) {
  return (index_entries(s) + 1) / 2;
}
/// In the scratch of a way back: two ints, then both, each at a multiple of 16
/// bytes.
constexpr int64_t kScratchTops = 4;
constexpr int64_t up_to_four(int64_t floats) { return (floats + 3) / 4 * 4; }

/// psi's table, near: boundaries and cells in shared memory; in the forward
/// rows, too, where they fit.
struct Table {
  __device__ Table(const FeatureMap<float>& map, const FeatureTiles& tiles,
                   float* memory)
      : low(map.table[0]),
        scale(map.table[1]),
        last_cell(static_cast<float>(map.shape.cells - 1)),
        boundary(memory + tiles.boundary),
        cells(reinterpret_cast<uint16_t*>(memory + tiles.cells)),
        rows(tiles.table_near ? memory + tiles.table
                              : map.table + map.shape.rows_at) {}

  /// By the whole block; a barrier comes after.
  __device__ static void copy(const FeatureMap<float>& map,
                              const FeatureTiles& tiles, float* memory) {
    const TableShape& s = map.shape;
    const int knots = static_cast<int>(s.knots);
    const auto copy_numbers = [&](int to, int64_t from, int count) {
      batched<8>(
          count, [&](int i) { return map.table[from + i]; },
          [&](int i, float x) { memory[to + i] = x; });
    };
    copy_numbers(tiles.boundary, s.boundary_at, knots);
    auto* cells = reinterpret_cast<uint16_t*>(memory + tiles.cells);
    const auto* from =
        reinterpret_cast<const int32_t*>(map.table + s.cell_begin_at);
    batched<8>(
        static_cast<int>(s.cells) + 1, [&](int i) { return from[i]; },
        [&](int i, int x) { cells[i] = static_cast<uint16_t>(x); });
    if (tiles.table_near) {
      copy_numbers(tiles.table, s.rows_at,
                   (knots + 1) * 2 * static_cast<int>(s.channels));
    }
  }

  /// The numbers of boundaries < u, of four at once so that their loads
  /// overlap.
  __device__ __forceinline__ void find(const float (&u)[4],
                                       int (&segment)[4]) const {
    int end[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float at = (u[i] - low) * scale;  // a NaN lands in cell 0
      const int cell = static_cast<int>(fminf(fmaxf(at, 0.f), last_cell));
      segment[i] = cells[cell];
      end[i] = cells[cell + 1];
    }
    while (segment[0] < end[0] || segment[1] < end[1] || segment[2] < end[2] ||
           segment[3] < end[3]) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (segment[i] >= end[i]) continue;
        const int middle = (segment[i] + end[i]) / 2;
        if (boundary[middle] < u[i]) {
          segment[i] = middle + 1;
        } else {
          end[i] = middle;
        }
      }
    }
    __syncwarp();
  }

  float low, scale, last_cell;
  const float* boundary;
  const uint16_t* cells;
  const float* rows;
};

/// A head's projections, with zeros around them.
__device__ __forceinline__ void copy_weights(const FeatureMap<float>& map,
                                             const FeatureTiles& tiles,
                                             int64_t head, float* memory) {
  const int stride = tiles.columns + 8;
  const int m_count = static_cast<int>(map.projections);
  const int width = static_cast<int>(map.width);
  const int64_t first = map.per_head ? head * map.projections : 0;
  batched<8>(
      tiles.rows * stride,
      [&](int i) {
        const int m = i / stride, j = i % stride;
        return m < m_count && j < width ? map.weight[(first + m) * width + j]
                                        : 0.f;
      },
      [&](int i, float x) { memory[tiles.weights + i] = x; });
  for (int m = threadIdx.x; m < tiles.rows; m += kThreads) {
    memory[tiles.biases + m] = m < m_count ? map.bias[first + m] : 0.f;
  }
}

__device__ __forceinline__ float2 unpacked(uint32_t x, Scalar type) {
  return type == Scalar::kHalf
             ? __half22float2(*reinterpret_cast<const __half2*>(&x))
             : make_float2(__int_as_float(static_cast<int>(x << 16)),
                           __int_as_float(static_cast<int>(x & 0xffff0000u)));
}

/// kCount neighbours as they lie in memory, a multiple of kCount away from its
/// start: no load is waited for before the next.
template <int kCount>
struct RawNumbers {
  __device__ __forceinline__ void load(const void* data, int64_t at,
                                       Scalar type) {
    if (type == Scalar::kFloat) {
      load_words<kCount>(static_cast<const uint32_t*>(data) + at);
    } else {
      load_words<kCount / 2>(static_cast<const uint32_t*>(data) + at / 2);
    }
  }
  __device__ __forceinline__ float2 pair(int i, Scalar type) const {
    return type == Scalar::kFloat
               ? make_float2(__int_as_float(static_cast<int>(words[2 * i])),
                             __int_as_float(static_cast<int>(words[2 * i + 1])))
               : unpacked(words[i], type);
  }
  template <int kWords>
  __device__ __forceinline__ void load_words(const uint32_t* from) {
    if constexpr (kWords == 1) {
      words[0] = __ldg(from);
    } else if constexpr (kWords == 2) {
      const uint2 x = __ldg(reinterpret_cast<const uint2*>(from));
      words[0] = x.x, words[1] = x.y;
    } else {
#pragma unroll
      for (int i = 0; i < kWords; i += 4) {
        const uint4 x = __ldg(reinterpret_cast<const uint4*>(from + i));
        words[i] = x.x, words[i + 1] = x.y;
        words[i + 2] = x.z, words[i + 3] = x.w;
      }
    }
  }
  uint32_t words[kCount];
};

/// Rows [first, first + count) with zeros around them, and a one behind each
/// that is there.
__device__ __forceinline__ void copy_rows(const FeatureRows& r, int64_t batch,
                                          int64_t head, int64_t first,
                                          int count, int width, bool in_fours,
                                          const FeatureTiles& tiles,
                                          float* to) {
  const int stride = tiles.columns + 8, fours = tiles.columns / 4;
  const int tokens = tiles.token_warps * 16;
  const int64_t begin = row_at(r.x, batch, head, first);
  for (int row = threadIdx.x; row < tokens; row += kThreads) {
    auto* behind = reinterpret_cast<float4*>(to + row * stride + tiles.columns);
    behind[0] = make_float4(row < count ? 1.f : 0.f, 0.f, 0.f, 0.f);
    behind[1] = make_float4(0.f, 0.f, 0.f, 0.f);
  }
  if (in_fours) {
    batched<8>(
        tokens * fours,
        [&](int i) {
          const int row = i / fours, j = i % fours * 4;
          RawNumbers<4> x = {};
          if (row < count && j < width) {
            x.load(r.x.data, begin + row * r.x.row + j, r.x.type);
          }
          return x;
        },
        [&](int i, const RawNumbers<4>& x) {
          const int row = i / fours, j = i % fours * 4;
          const float2 a = x.pair(0, r.x.type), b = x.pair(1, r.x.type);
          *reinterpret_cast<float4*>(to + row * stride + j) =
              make_float4(a.x, a.y, b.x, b.y);
        });
    return;
  }
  for (int i = threadIdx.x; i < tokens * tiles.columns; i += kThreads) {
    const int row = i / tiles.columns, j = i % tiles.columns;
    to[row * stride + j] =
        row < count && j < width
            ? load<float>(r.x.data, begin + row * r.x.row + j, r.x.type)
            : 0.f;
  }
}

/// Whether rows can be read four numbers at a time.
inline bool in_fours(const Rows& x, int64_t width) {
  const int64_t bytes = x.type == Scalar::kFloat ? 16 : 8;
  return reinterpret_cast<uintptr_t>(x.data) % bytes == 0 && x.row % 4 == 0 &&
         x.head % 4 == 0 && x.batch % 4 == 0 && width % 4 == 0;
}

/// How a call's channels lie, in the table and in the features.
inline Channels channels_of(const FeatureMap<float>& map, const Rows& phi) {
  const int64_t neighbours = map.shape.channels == 1 ? 2 : 8;
  const auto aligned = [](const void* x, int64_t bytes) {
    return reinterpret_cast<uintptr_t>(x) % bytes == 0;
  };
  const bool even = phi.row % neighbours == 0 && phi.head % neighbours == 0 &&
                    phi.batch % neighbours == 0 &&
                    aligned(phi.data, neighbours == 2 ? 8 : 16);
  if (!even) return Channels::kAny;
  if (map.shape.channels == 1) {
    return aligned(map.table, 8) ? Channels::kOne : Channels::kAny;
  }
  return map.shape.channels % 8 == 0 && aligned(map.table, 16)
             ? Channels::kEights
             : Channels::kAny;
}

}  // namespace luna::cuda::features
