#pragma once

#include "ops/cuda/fused.h"
#include "ops/cuda/psi.cuh"
#include "ops/cuda/tile.cuh"

// The pieces of the fused kernels. A warp works alone on 16 tokens at a time:
// rows come by cp.async into stages of its own, products are mma.m16n8k16, and
// the layouts are chosen such that what one product leaves in a thread's
// registers is what the next one wants there.
//
//   W as two bfloat16 (high and low part), so that u has float32's digits.
//   The depth of the projection is permuted: thread t of a quad reads columns
//   8 t.. and 32 + 8 t.. of a row, 16 bytes each, where the fragment's columns
//   stand.

namespace luna::cuda::fused {

constexpr int kWidth = 64;
constexpr int kChannels = 8;
constexpr int kFeatures = 64;
constexpr int kLd = kWidth + 1;
constexpr int kTokens = 16;  // a warp's tile
constexpr int kRowBytes = 2 * kWidth;
constexpr int kTileBytes = kTokens * kRowBytes;

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ __forceinline__ void copy_async(uint32_t to, const void* from,
                                           bool valid) {
  const int bytes = valid ? 16 : 0;  // the rest becomes zeros
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to),
               "l"(from), "r"(bytes));
}
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;\n");
}
template <int kPending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending));
}

/// c += a b, bfloat16 in, float32 sums.
__device__ __forceinline__ void mma(float (&c)[4], uint32_t a0, uint32_t a1,
                                    uint32_t a2, uint32_t a3, uint32_t b0,
                                    uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void load_transposed(uint32_t (&r)[4],
                                                uint32_t address) {
  asm volatile(
      "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
      : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
      : "r"(address));
}
/// Two numbers in one register, the first in the low half.
__device__ __forceinline__ uint32_t pack(float low, float high) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
/// The 8 x 8 matrix of which each thread holds two neighbours, transposed.
__device__ __forceinline__ uint32_t transpose(uint32_t x) {
  uint32_t r;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;\n" : "=r"(r) : "r"(x));
  return r;
}
__device__ __forceinline__ float high_part(float x) {
  return __bfloat162float(__float2bfloat16_rn(x));
}

/// psi's table as the look-up wants it, in shared memory: rows of 8 slopes and
/// of 8 values at the segment's reference point, float16, each row with a
/// scale of its own, so that no number is too large for it. The reference is
/// the point of the segment nearest to 0: digits are lost to distance alone.
struct Table {
  uint4* slopes;
  uint4* values;
  float2* reference;  ///< point, scale
  float* boundary;
  uint16_t* cell_begin;
  float low, scale, last_cell;

  __host__ __device__ static int64_t bytes(const TableShape& s) {
    const int64_t rows = s.knots + 1;
    return rows * 32 + align(rows * 8) + align((s.knots + 1) * 4) +
           align((s.cells + 1) * 2);
  }
  __host__ __device__ static int64_t align(int64_t bytes) {
    return (bytes + 15) / 16 * 16;
  }

  __device__ Table(const FeatureMap<float>& map, void* memory)
      : low(map.table[0]),
        scale(map.table[1]),
        last_cell(static_cast<float>(map.shape.cells - 1)) {
    const TableShape& s = map.shape;
    const int64_t rows = s.knots + 1;
    slopes = static_cast<uint4*>(memory);
    values = slopes + rows;
    auto* next = reinterpret_cast<char*>(values + rows);
    reference = reinterpret_cast<float2*>(next);
    next += align(rows * 8);
    boundary = reinterpret_cast<float*>(next);
    next += align((s.knots + 1) * 4);
    cell_begin = reinterpret_cast<uint16_t*>(next);
  }

  /// Starts copying the image; a wait for all copies and a barrier end it.
  __device__ void copy(const TableShape& shape, const void* image) {
    const int words = static_cast<int>(bytes(shape) / 16);
    const uint32_t to = shared_address(slopes);
    for (int i = threadIdx.x; i < words; i += blockDim.x) {
      copy_async(to + 16 * i, static_cast<const uint4*>(image) + i, true);
    }
  }

  /// Writes the parts that this thread of the grid has.
  __device__ void build(const FeatureMap<float>& map) {
    const TableShape& s = map.shape;
    const int64_t rows = s.knots + 1;
    const float* sorted = map.table + s.boundary_at;
    const auto* cells =
        reinterpret_cast<const int*>(map.table + s.cell_begin_at);
    const int own = blockIdx.x * blockDim.x + threadIdx.x;
    const int all = gridDim.x * blockDim.x;
    // Words are copied whole, so the padding is written too.
    for (int i = own; i < align((s.knots + 1) * 4) / 4; i += all) {
      boundary[i] = i < s.knots ? sorted[i] : INFINITY;
    }
    for (int i = own; i < align((s.cells + 1) * 2) / 2; i += all) {
      cell_begin[i] = static_cast<uint16_t>(cells[i <= s.cells ? i : 0]);
    }
    for (int64_t i = rows + own; i < align(rows * 8) / 8; i += all) {
      reference[i] = make_float2(0.f, 0.f);
    }
    for (int i = own; i < rows; i += all) {
      const float4* row = reinterpret_cast<const float4*>(
          map.table + s.rows_at + static_cast<int64_t>(i) * 2 * kChannels);
      float a[kChannels], b[kChannels];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float4 x = row[j], y = row[2 + j];
        a[4 * j] = x.x, a[4 * j + 1] = x.y;
        a[4 * j + 2] = x.z, a[4 * j + 3] = x.w;
        b[4 * j] = y.x, b[4 * j + 1] = y.y;
        b[4 * j + 2] = y.z, b[4 * j + 3] = y.w;
      }
      const float from = i == 0 ? -INFINITY : sorted[i - 1], to = sorted[i];
      float point = from > 0 ? from : (to < 0 ? to : 0.f);
      if (!isfinite(point)) point = 0.f;
      float top = 0;
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        b[c] = fmaf(a[c], point, b[c]);
        top = fmaxf(top, fmaxf(fabsf(a[c]), fabsf(b[c])));
      }
      // A power of two, so that dividing by it loses nothing.
      const float unit =
          top > 1e-30f && top < 1e30f ? exp2f(floorf(log2f(top))) : 1.f;
      const float inverse = 1.f / unit;
      __half2 x[4], y[4];
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        x[c] = __floats2half2_rn(a[2 * c] * inverse, a[2 * c + 1] * inverse);
        y[c] = __floats2half2_rn(b[2 * c] * inverse, b[2 * c + 1] * inverse);
      }
      slopes[i] = *reinterpret_cast<uint4*>(x);
      values[i] = *reinterpret_cast<uint4*>(y);
      reference[i] = make_float2(point, unit * map.factor);
    }
  }

  __device__ __forceinline__ int cell_of(float u) const {
    const float at = (u - low) * scale;  // a NaN lands in cell 0
    return static_cast<int>(at > 0.f ? (at < last_cell ? at : last_cell) : 0.f);
  }
  /// Segments of four numbers at once, so that their loads overlap: few cells
  /// hold more than two boundaries.
  __device__ __forceinline__ void find(float a, float b, float c, float d,
                                       int& i, int& j, int& k, int& l) const {
    i = cell_begin[cell_of(a)];
    j = cell_begin[cell_of(b)];
    k = cell_begin[cell_of(c)];
    l = cell_begin[cell_of(d)];
    bool more = true;
    while (more) {
      const bool p = boundary[i] < a, q = boundary[j] < b, r = boundary[k] < c,
                 s = boundary[l] < d;
      i += p;
      j += q;
      k += r;
      l += s;
      more = p || q || r || s;
    }
  }

  /// phi_c(u), u in segment s, times `weight`.
  template <bool kNonneg>
  __device__ __forceinline__ void look_up(int s, float u, float weight,
                                          float (&phi)[kChannels]) const {
    uint4 slope;
    float unit;
    look_up<kNonneg>(s, u, weight, phi, slope, unit);
  }
  /// The same with its slopes: dphi_c / du = unit * slope_c.
  template <bool kNonneg>
  __device__ __forceinline__ void look_up(int s, float u, float weight,
                                          float (&phi)[kChannels], uint4& slope,
                                          float& unit) const {
    const float2 r = reference[s];
    slope = slopes[s];
    const uint4 value = values[s];
    const float x = u - r.x;
    unit = r.y * weight;
    const uint32_t as[4] = {slope.x, slope.y, slope.z, slope.w};
    const uint32_t bs[4] = {value.x, value.y, value.z, value.w};
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const float2 a =
          __half22float2(*reinterpret_cast<const __half2*>(&as[c]));
      const float2 b =
          __half22float2(*reinterpret_cast<const __half2*>(&bs[c]));
      float p = fmaf(a.x, x, b.x), q = fmaf(a.y, x, b.y);
      if (kNonneg) {  // a NaN stays one
        p = p < 0.f ? 0.f : p;
        q = q < 0.f ? 0.f : q;
      }
      phi[2 * c] = p * unit;
      phi[2 * c + 1] = q * unit;
    }
  }
};

/// The 16-byte chunk of a row in a stage. Two rows at a time are read as
/// fragments, eight by ldmatrix: each order keeps its readers off one another.
__device__ __forceinline__ uint32_t fragment_chunk(int row, int chunk) {
  return row * kRowBytes + ((chunk ^ ((row & 1) << 2)) << 4);
}
__device__ __forceinline__ uint32_t matrix_chunk(int row, int chunk) {
  return row * kRowBytes + ((chunk ^ (row & 7)) << 4);
}

/// Starts copying 16 rows, zeros from `count` on.
template <bool kMatrix>
__device__ __forceinline__ void copy_rows(uint32_t stage,
                                          const __nv_bfloat16* rows,
                                          int64_t stride, int count) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = i * 4 + lane / 8, chunk = lane % 8;
    const bool valid = row < count;
    const uint32_t to = stage + (kMatrix ? matrix_chunk(row, chunk)
                                         : fragment_chunk(row, chunk));
    copy_async(to, rows + (valid ? row * stride : 0) + chunk * 8, valid);
  }
}

/// W's fragments, high and low parts: columns as a row's fragment has them.
/// For row or column g of the fragment: projection g.
struct Projection {
  uint32_t high[4][2], low[4][2];

  __device__ void load(const FeatureMap<float>& map, int64_t head) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const float* w =
        map.weight +
        ((map.per_head ? head : 0) * map.projections + g) * map.width;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int column = 8 * t + 4 * (k % 2) + 32 * (k / 2) + 2 * j;
        const float x = w[column], y = w[column + 1];
        const float hx = high_part(x), hy = high_part(y);
        high[k][j] = pack(hx, hy);
        low[k][j] = pack(x - hx, y - hy);
      }
    }
  }
};

/// Shared memory of the forward's larger kernel.
size_t forward_memory(const TableShape& shape);

inline int device_attribute(cudaDeviceAttr attribute) {
  int device = 0, number = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&number, attribute, device);
  return number;
}
inline int multiprocessors() {
  return device_attribute(cudaDevAttrMultiProcessorCount);
}

/// A grid of one block for each multiprocessor, that walks the work.
template <typename Kernel, typename Args>
void launch(Kernel kernel, int64_t work, int threads, size_t memory,
            const Args& args, cudaStream_t stream, const char* name) {
  if (work == 0) return;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       static_cast<int>(memory));
  const int64_t blocks = multiprocessors();
  kernel<<<static_cast<unsigned>(work < blocks ? work : blocks), threads,
           memory, stream>>>(args);
  check_launch(name);
}

}  // namespace luna::cuda::fused
