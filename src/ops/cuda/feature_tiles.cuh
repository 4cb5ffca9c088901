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
constexpr int kAtOnce = 4;  // eights of projections

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
template <bool kExact>
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
        multiply(u[j], rows, Split(*reinterpret_cast<const float2*>(w)),
                 Split(*reinterpret_cast<const float2*>(w + 8)));
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

/// psi's table, near: boundaries and cells in shared memory, rows there too
/// where they fit.
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
    for (int i = threadIdx.x; i < knots; i += kThreads) {
      memory[tiles.boundary + i] = map.table[s.boundary_at + i];
    }
    auto* cells = reinterpret_cast<uint16_t*>(memory + tiles.cells);
    const auto* from =
        reinterpret_cast<const int32_t*>(map.table + s.cell_begin_at);
    for (int i = threadIdx.x; i <= static_cast<int>(s.cells); i += kThreads) {
      cells[i] = static_cast<uint16_t>(from[i]);
    }
    if (!tiles.table_near) return;
    const int numbers = (knots + 1) * 2 * static_cast<int>(s.channels);
    for (int i = threadIdx.x; i < numbers; i += kThreads) {
      memory[tiles.table + i] = map.table[s.rows_at + i];
    }
  }

  /// The number of boundaries < u.
  __device__ __forceinline__ int segment_of(float u) const {
    const float at = (u - low) * scale;  // a NaN lands in cell 0
    const int cell = static_cast<int>(fminf(fmaxf(at, 0.f), last_cell));
    int begin = cells[cell], end = cells[cell + 1];
    while (begin < end) {
      const int middle = (begin + end) / 2;
      if (boundary[middle] < u) {
        begin = middle + 1;
      } else {
        end = middle;
      }
    }
    return begin;
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
  for (int i = threadIdx.x; i < tiles.rows * stride; i += kThreads) {
    const int m = i / stride, j = i % stride;
    memory[tiles.weights + i] =
        m < m_count && j < width ? map.weight[(first + m) * width + j] : 0.f;
  }
  for (int m = threadIdx.x; m < tiles.rows; m += kThreads) {
    memory[tiles.biases + m] = m < m_count ? map.bias[first + m] : 0.f;
  }
}

/// Four neighbours of a row; `at` is a multiple of 4 away from its start.
__device__ __forceinline__ float4 load_four(const void* data, int64_t at,
                                            Scalar type) {
  if (type == Scalar::kFloat) {
    return *reinterpret_cast<const float4*>(static_cast<const float*>(data) +
                                            at);
  }
  const uint2 x =
      *reinterpret_cast<const uint2*>(static_cast<const uint16_t*>(data) + at);
  float2 a, b;
  if (type == Scalar::kHalf) {
    a = __half22float2(*reinterpret_cast<const __half2*>(&x.x));
    b = __half22float2(*reinterpret_cast<const __half2*>(&x.y));
  } else {
    a = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&x.x));
    b = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&x.y));
  }
  return make_float4(a.x, a.y, b.x, b.y);
}

/// Rows [first, first + count) with zeros around them, and a one behind each
/// that is there.
__device__ __forceinline__ void copy_rows(const FeatureRows& r, int64_t batch,
                                          int64_t head, int64_t first,
                                          int count, int width, bool in_fours,
                                          const FeatureTiles& tiles,
                                          float* to) {
  const int stride = tiles.columns + 8, fours = stride / 4;
  const int64_t begin = row_at(r.x, batch, head, first);
  for (int i = threadIdx.x; i < tiles.token_warps * 16 * fours; i += kThreads) {
    const int row = i / fours, j = i % fours * 4;
    const int64_t at = begin + row * r.x.row + j;
    float4 x = make_float4(0.f, 0.f, 0.f, 0.f);
    if (row < count) {
      if (in_fours) {
        if (j < width) x = load_four(r.x.data, at, r.x.type);
      } else {
        if (j < width) x.x = load<float>(r.x.data, at, r.x.type);
        if (j + 1 < width) x.y = load<float>(r.x.data, at + 1, r.x.type);
        if (j + 2 < width) x.z = load<float>(r.x.data, at + 2, r.x.type);
        if (j + 3 < width) x.w = load<float>(r.x.data, at + 3, r.x.type);
      }
      if (j == tiles.columns) x.x = 1.f;
    }
    *reinterpret_cast<float4*>(to + row * stride + j) = x;
  }
}

/// Whether rows can be read four numbers at a time.
inline bool in_fours(const Rows& x, int64_t width) {
  const int64_t bytes = x.type == Scalar::kFloat ? 16 : 8;
  return reinterpret_cast<uintptr_t>(x.data) % bytes == 0 && x.row % 4 == 0 &&
         x.head % 4 == 0 && x.batch % 4 == 0 && width % 4 == 0;
}

/// Whether channels come in eights that start at words, in the table and in
/// the features.
inline bool in_eights(const FeatureMap<float>& map, const Rows& phi) {
  const auto at_word = [](const void* x) {
    return reinterpret_cast<uintptr_t>(x) % 16 == 0;
  };
  return map.shape.channels % 8 == 0 && at_word(map.table) &&
         at_word(phi.data) && phi.row % 8 == 0 && phi.head % 8 == 0 &&
         phi.batch % 8 == 0;
}

}  // namespace luna::cuda::features
