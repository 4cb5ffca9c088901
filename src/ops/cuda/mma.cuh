#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

// Tensor-core products of 16-bit numbers, mma.m16n8k16, and the tiles in
// shared memory that they read.
//
// In a warp, thread 4 g + t holds of a product's 16 x 8 result rows g and
// g + 8, columns 2 t and 2 t + 1. Two such results side by side, rounded, are
// the left operand of a next product: nothing has to move.

namespace luna::cuda::mma {

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
/// 16 bytes; zeros where not `valid`.
__device__ __forceinline__ void copy_async(uint32_t to, const void* from,
                                           bool valid) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to),
               "l"(from), "r"(bytes));
}
/// 4 bytes; zeros where not `valid`.
__device__ __forceinline__ void copy_word_async(uint32_t to, const void* from,
                                                bool valid) {
  const int bytes = valid ? 4 : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(to),
               "l"(from), "r"(bytes));
}
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;\n");
}
template <int kPending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending));
}

/// The warps of a group, which number `kWarps`, wait for each other.
template <int kWarps>
__device__ __forceinline__ void group_barrier(int group) {
  if constexpr (kWarps == 1) {
    __syncwarp();
  } else {
    asm volatile("bar.sync %0, %1;\n" ::"r"(group + 1), "n"(kWarps * 32)
                 : "memory");
  }
}

__device__ __forceinline__ float power(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

/// Two numbers in one register, the first in the low half.
template <typename T>
__device__ __forceinline__ uint32_t pack(float low, float high) {
  uint32_t r;
  if constexpr (std::is_same_v<T, __half>) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;\n" : "=r"(r) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(r) : "f"(high), "f"(low));
  }
  return r;
}
template <typename T>
__device__ __forceinline__ float to_float(T x) {
  if constexpr (std::is_same_v<T, __half>) {
    return __half2float(x);
  } else {
    return __bfloat162float(x);
  }
}

using Left = uint32_t[4];  ///< 16 x 16
using Sum = float[4];      ///< 16 x 8

/// sum += a b.
template <typename T>
__device__ __forceinline__ void add(Sum& c, const Left& a, uint32_t b0,
                                    uint32_t b1) {
  if constexpr (std::is_same_v<T, __half>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

/// Two neighbouring results as a left operand.
template <typename T>
__device__ __forceinline__ void to_left(Left& a, const Sum& x, const Sum& y) {
  a[0] = pack<T>(x[0], x[1]);
  a[1] = pack<T>(x[2], x[3]);
  a[2] = pack<T>(y[0], y[1]);
  a[3] = pack<T>(y[2], y[3]);
}
/// The 8 x 8 matrix of which each thread holds two neighbours, transposed.
__device__ __forceinline__ uint32_t transposed(uint32_t x) {
  uint32_t r;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;\n" : "=r"(r) : "r"(x));
  return r;
}
__device__ __forceinline__ void transpose(Left& to, const Left& from) {
  to[0] = transposed(from[0]);
  to[1] = transposed(from[2]);
  to[2] = transposed(from[1]);
  to[3] = transposed(from[3]);
}

/// Rows of D numbers in shared memory, their 16-byte chunks in an order that
/// keeps the eight rows of a matrix in different banks.
template <int D>
struct Tile {
  static constexpr int kRowBytes = 2 * D;
  static constexpr int kChunks = D / 8;
  __device__ static __forceinline__ int turn(int row) {
    return D >= 64 ? row & 7 : (row >> 1) & (kChunks - 1);
  }
  __device__ static __forceinline__ uint32_t at(int row, int chunk) {
    return row * kRowBytes + ((chunk ^ turn(row)) << 4);
  }
  /// Where this thread's address of a 16 x 16 block lies: of rows from a
  /// multiple of 16, chunks `chunk` (even) and the next.
  __device__ static __forceinline__ uint32_t block(int row, int chunk) {
    const int lane = threadIdx.x % 32;
    return (row + lane % 16) * kRowBytes +
           (((lane / 16) ^ turn(lane % 16) ^ chunk) << 4);
  }
  /// r: as a left operand; or, of the product with the transposed tile, the
  /// right operands of result columns 0-7 (r[0], r[2]) and 8-15 (r[1], r[3]).
  __device__ static __forceinline__ void load(Left& r, uint32_t tile, int row,
                                              int chunk) {
    asm volatile(
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
        : "r"(tile + block(row, chunk)));
  }
  /// The right operands of columns 0-7 (r[0], r[1]) and 8-15 (r[2], r[3]).
  __device__ static __forceinline__ void load_right(Left& r, uint32_t tile,
                                                    int row, int chunk) {
    asm volatile(
        "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
        : "r"(tile + block(row, chunk)));
  }

  /// Starts copying `rows` rows by `kThreads` threads; zeros from row `count`
  /// and from column `width` on.
  template <typename T, int kThreads>
  __device__ static __forceinline__ void copy(uint32_t tile, const T* from,
                                              int64_t stride, int rows,
                                              int64_t count, int width,
                                              int thread) {
#pragma unroll 4
    for (int i = thread; i < rows * kChunks; i += kThreads) {
      const int row = i / kChunks, chunk = i % kChunks;
      const bool valid = row < count && chunk * 8 < width;
      copy_async(tile + at(row, chunk),
                 from + (valid ? row * stride + chunk * 8 : 0), valid);
    }
  }

  /// Two neighbours of one row, columns 8 chunk + 2 t..
  __device__ static __forceinline__ void put(uint32_t tile, int row, int chunk,
                                             uint32_t x) {
    asm volatile("st.shared.b32 [%0], %1;\n" ::"r"(tile + at(row, chunk) +
                                                   threadIdx.x % 4 * 4),
                 "r"(x)
                 : "memory");
  }
  /// A warp's rows to global memory.
  template <typename T>
  __device__ static __forceinline__ void store(uint32_t tile, T* to,
                                               int64_t stride, int rows,
                                               int64_t count, int width) {
#pragma unroll 4
    for (int i = threadIdx.x % 32; i < rows * kChunks; i += 32) {
      const int row = i / kChunks, chunk = i % kChunks;
      uint4 x;
      asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];\n"
                   : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                   : "r"(tile + at(row, chunk)));
      if (row < count && chunk * 8 < width) {
        *reinterpret_cast<uint4*>(to + row * stride + chunk * 8) = x;
      }
    }
  }
};

/// result[i] (+)= the product of left operands x, 16 rows by D, with rows
/// [row, row + 16) of a tile, transposed.
template <typename T, int D>
__device__ __forceinline__ void multiply(Sum (&result)[2],
                                         const Left (&x)[D / 16], uint32_t tile,
                                         int row) {
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
    Left r;
    Tile<D>::load(r, tile, row, 2 * k);
    add<T>(result[0], x[k], r[0], r[2]);
    add<T>(result[1], x[k], r[1], r[3]);
  }
}

/// The greatest, and the sum, of the four threads that share a row.
__device__ __forceinline__ float row_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ __forceinline__ float row_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

}  // namespace luna::cuda::mma
