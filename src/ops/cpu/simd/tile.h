#pragma once

#include <cstdint>

// Arithmetic on tiles that fit in cache, the same functions for every
// instruction set. T is float or double. The algorithms above choose the
// tiles and the threads; nothing here allocates or knows of tensors.

namespace luna::cpu {

/// A token's row in memory of whatever type a tensor holds.
enum class Scalar { kFloat, kDouble, kBFloat16, kHalf };

template <typename T>
struct TileKernels {
  int64_t lanes;  ///< widths of C that are multiples of this need no copy
  /// C[m,n] = A[m,k] B[k,n], or C += A B. A's element (i,p) stands at
  /// a[i*a_row + p*a_col], so A may be a transposed view; rows of B and C are
  /// contiguous, ldb and ldc apart.
  void (*gemm)(int64_t m, int64_t n, int64_t k, const T* a, int64_t a_row,
               int64_t a_col, const T* b, int64_t ldb, T* c, int64_t ldc,
               bool accumulate);
  /// dst[j*ldd + i] = src[i*lds + j] for i < rows, j < cols.
  void (*transpose)(int64_t rows, int64_t cols, const T* src, int64_t lds,
                    T* dst, int64_t ldd);
  /// dst[i*ldd + j] = src[i*lds + j], converted (strides in elements).
  void (*load)(Scalar type, int64_t rows, int64_t cols, const void* src,
               int64_t lds, T* dst, int64_t ldd);
  /// The way back, rounded to nearest even.
  void (*store)(Scalar type, int64_t rows, int64_t cols, const T* src,
                int64_t lds, void* dst, int64_t ldd);
  /// out[i] = sum_j a[i*lda + j] * b[i*ldb + j]; ldb = 0 repeats one row.
  void (*row_dots)(int64_t rows, int64_t cols, const T* a, int64_t lda,
                   const T* b, int64_t ldb, T* out);
  /// a[i*lda + j] *= factor[i].
  void (*scale_rows)(int64_t rows, int64_t cols, T* a, int64_t lda,
                     const T* factor);
  /// out[j] += sum_i factor[i] * a[i*lda + j]; factor null: 1.
  void (*add_rows)(int64_t rows, int64_t cols, const T* a, int64_t lda,
                   const T* factor, T* out);
  /// c[i*ldc + j] += x[i] * y[j]; x null: 1.
  void (*add_outer)(int64_t rows, int64_t cols, const T* x, const T* y, T* c,
                    int64_t ldc);
  /// dst[i] += src[i].
  void (*add)(int64_t count, const T* src, T* dst);
};

/// The kernels for this machine (see isa.h).
template <typename T>
const TileKernels<T>& tile_kernels();
template <>
const TileKernels<float>& tile_kernels<float>();
template <>
const TileKernels<double>& tile_kernels<double>();

}  // namespace luna::cpu
