#pragma once

#include "ops/cuda/fused_numbers.cuh"

namespace luna::cuda::fused {

/// psi's table as the look-up wants it: rows of 8 slopes and of 8 values at
/// the segment's reference point, float16, each row with a scale of its own,
/// so that no number is too large for it. The reference is near the point of
/// the segment nearest to 0: digits are lost to distance alone.
struct Table {
  uint4* slopes;
  uint4* values;
  float2* entry;  ///< the segment's end; its reference, with the scale's
                  ///< exponent for its last 8 bits
  uint16_t* cell_begin;
  float low, scale, last_cell;
  float least;  ///< of a feature

  /// Of `rows` rows, a multiple of 16 bytes.
  __host__ __device__ static int bytes(int64_t rows, int64_t cells) {
    return static_cast<int>((rows * 40 + 15) / 16 * 16 + (cells + 8) / 8 * 16);
  }
  __host__ __device__ static int bytes(const TableShape& s) {
    return bytes(s.knots + 1, s.cells);
  }

  __device__ Table(const FeatureMap<float>& map, unsigned char* memory,
                   int64_t rows, const float* grid)
      : slopes(reinterpret_cast<uint4*>(memory)),
        values(slopes + rows),
        entry(reinterpret_cast<float2*>(values + rows)),
        cell_begin(
            reinterpret_cast<uint16_t*>(memory + (rows * 40 + 15) / 16 * 16)),
        low(grid[0]),
        scale(grid[1]),
        last_cell(static_cast<float>(map.shape.cells - 1)),
        least(map.nonneg ? 0.f : -INFINITY) {
    keep(last_cell);
    keep(least);
  }
  __device__ Table(const FeatureMap<float>& map, unsigned char* memory)
      : Table(map, memory, map.shape.knots + 1, map.table) {}

  /// By the whole block; a barrier comes after. All loads of the usual sizes
  /// are on their way before the first is used.
  template <int kThreads>
  __device__ void build(const FeatureMap<float>& map) {
    const TableShape& s = map.shape;
    const int rows = static_cast<int>(s.knots) + 1;
    const int cells = static_cast<int>(s.cells) + 1;
    const auto* begins =
        reinterpret_cast<const int*>(map.table + s.cell_begin_at);
    constexpr int kAhead = 4096 / kThreads + 1;
    for (int base = 0; base < cells; base += kAhead * kThreads) {
      int begin[kAhead];
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        const int i = base + j * kThreads + threadIdx.x;
        begin[j] = i < cells ? begins[i] : 0;
      }
      if (base == 0) build_rows<kThreads>(map, rows);
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        const int i = base + j * kThreads + threadIdx.x;
        if (i < cells) cell_begin[i] = static_cast<uint16_t>(begin[j]);
      }
    }
  }

  /// A row's scale, from its reference.
  __device__ __forceinline__ static float unit_of(float point) {
    return __int_as_float(__float_as_int(point) << 23 & 0x7f800000);
  }
  __device__ __forceinline__ int cell_of(float u) const {
    // A NaN lands in cell 0.
    return static_cast<int>(fminf(fmaxf((u - low) * scale, 0.f), last_cell));
  }
  /// Rows and references of four numbers at once, so that their loads
  /// overlap: few cells hold more than two boundaries.
  __device__ __forceinline__ void find(const float (&u)[4], int (&segment)[4],
                                       float (&point)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      segment[i] = cell_begin[cell_of(u[i])];
    }
    bool more[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 e = entry[segment[i]];
      point[i] = e.y;
      more[i] = e.x < u[i];
    }
    while (more[0] || more[1] || more[2] || more[3]) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        segment[i] += more[i] ? 1 : 0;
        if (more[i]) {
          const float2 e = entry[segment[i]];
          point[i] = e.y;
          more[i] = e.x < u[i];
        }
      }
    }
    __syncwarp();
  }

  /// Features of four numbers times their rows' weights, as pairs of channels,
  /// with their slopes and the slopes' units.
  __device__ __forceinline__ void look_up(
      const float (&u)[4], const float (&weight)[2], int (&segment)[4],
      uint32_t (&phi)[4][4], uint4 (&slope)[4], float (&unit)[4]) const {
    float point[4];
    find(u, segment, point);
    uint4 value[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      slope[i] = slopes[segment[i]];
      value[i] = values[segment[i]];
    }
    float most = 0.f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      unit[i] = unit_of(point[i]);
      point[i] = u[i] - point[i];
      most = fmaxf(most, fabsf(point[i]));
    }
    // Rows' numbers are less than 2: far from overflow.
    if (most < 1024.f) {
      const __half2 least2 = __float2half2_rn(least);
      evaluate(
          slope, value, weight, unit, phi, [&](int i, uint32_t a, uint32_t b) {
            const __half2 y =
                __hfma2(as_halves(a), __float2half2_rn(point[i]), as_halves(b));
            return __half22float2(__hmax2_nan(y, least2));
          });
    } else {
      evaluate(slope, value, weight, unit, phi,
               [&](int i, uint32_t a, uint32_t b) {
                 const float2 x = halves(a), y = halves(b);
                 return make_float2(at_least(fmaf(x.x, point[i], y.x), least),
                                    at_least(fmaf(x.y, point[i], y.y), least));
               });
    }
  }

  /// Row i: the segment whose slopes and intercepts are `line`, from `from` to
  /// `to`.
  __device__ void build_row(int i, const float4 (&line)[4], float from,
                            float to, float factor) {
    float a[kChannels], b[kChannels];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float4 x = line[j], y = line[2 + j];
      a[4 * j] = x.x, a[4 * j + 1] = x.y;
      a[4 * j + 2] = x.z, a[4 * j + 3] = x.w;
      b[4 * j] = y.x, b[4 * j + 1] = y.y;
      b[4 * j + 2] = y.z, b[4 * j + 3] = y.w;
    }
    float point = from > 0 ? from : (to < 0 ? to : 0.f);
    if (!isfinite(point)) point = 0.f;
    float top = 0;
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      top = fmaxf(top, fmaxf(fabsf(a[c]), fabsf(fmaf(a[c], point, b[c]))));
    }
    // A power of two, so that dividing by it loses nothing.
    const int exponent =
        top > 1e-30f && top < 1e30f ? __float_as_int(top) >> 23 : 127;
    const float inverse = __int_as_float((254 - exponent) << 23) * factor;
    point = __int_as_float((__float_as_int(point) & ~0xff) | exponent);
    __half2 x[4], y[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const float p = fmaf(a[2 * c], point, b[2 * c]);
      const float q = fmaf(a[2 * c + 1], point, b[2 * c + 1]);
      x[c] = __floats2half2_rn(a[2 * c] * inverse, a[2 * c + 1] * inverse);
      y[c] = __floats2half2_rn(p * inverse, q * inverse);
    }
    slopes[i] = *reinterpret_cast<uint4*>(x);
    values[i] = *reinterpret_cast<uint4*>(y);
    entry[i] = make_float2(to, point);
  }

 private:
  /// phi from the numbers that `psi` makes of pairs of slopes and values.
  template <typename Psi>
  __device__ __forceinline__ static void evaluate(const uint4 (&slope)[4],
                                                  const uint4 (&value)[4],
                                                  const float (&weight)[2],
                                                  const float (&unit)[4],
                                                  uint32_t (&phi)[4][4],
                                                  const Psi& psi) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float factor = unit[i] * weight[i / 2];
      const uint32_t as[4] = {slope[i].x, slope[i].y, slope[i].z, slope[i].w};
      const uint32_t bs[4] = {value[i].x, value[i].y, value[i].z, value[i].w};
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float2 y = psi(i, as[c], bs[c]);
        phi[i][c] = pack(y.x * factor, y.y * factor);
      }
    }
  }

  template <int kThreads>
  __device__ void build_rows(const FeatureMap<float>& map, int rows) {
    const float* sorted = map.table + map.shape.boundary_at;
    const float4* from =
        reinterpret_cast<const float4*>(map.table + map.shape.rows_at);
    constexpr int kAhead = 2;
    for (int base = 0; base < rows; base += kAhead * kThreads) {
      float4 line[kAhead][4];
      float begin[kAhead], end[kAhead];
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        const int i = base + j * kThreads + threadIdx.x;
        if (i >= rows) continue;
#pragma unroll
        for (int k = 0; k < 4; ++k) line[j][k] = from[4 * i + k];
        begin[j] = i == 0 ? -INFINITY : sorted[i - 1];
        end[j] = sorted[i];  // infinity after the last
      }
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        const int i = base + j * kThreads + threadIdx.x;
        if (i < rows) build_row(i, line[j], begin[j], end[j], map.factor);
      }
    }
  }
};

}  // namespace luna::cuda::fused
