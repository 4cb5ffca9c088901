#include "ops/cpu/simd/tile.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cstring>

#include "ops/cpu/simd/isa.h"
#include "ops/cpu/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/simd/tile.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h comes first: highway.h is then read once for each target.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace luna::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// MR x NV vectors of C stay in registers while one row of B after the other
// is multiplied with MR broadcast elements of A: MR + NV loads for MR * NV
// fused multiply-adds. 6 x 4 fills AVX-512's 32 registers, 6 x 2 AVX2's 16.
template <typename D, int MR, int NV, typename T = hn::TFromD<D>>
HWY_INLINE void micro_kernel(D d, int64_t k, const T* a, int64_t a_row,
                             int64_t a_col, const T* b, int64_t ldb, T* c,
                             int64_t ldc, bool accumulate) {
  using V = hn::Vec<D>;
  constexpr int64_t kLanes = hn::MaxLanes(D());
  V acc[MR][NV];
#pragma GCC unroll 16
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) {
      acc[i][j] =
          accumulate ? hn::LoadU(d, c + i * ldc + j * kLanes) : hn::Zero(d);
    }
  }
  for (int64_t p = 0; p < k; ++p) {
    V row[NV];
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) row[j] = hn::LoadU(d, b + j * kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i) {
      const V x = hn::Set(d, a[i * a_row]);
#pragma GCC unroll 4
      for (int j = 0; j < NV; ++j) {
        acc[i][j] = hn::MulAdd(x, row[j], acc[i][j]);
      }
    }
    a += a_col;
    b += ldb;
  }
#pragma GCC unroll 16
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) {
      hn::StoreU(acc[i][j], d, c + i * ldc + j * kLanes);
    }
  }
}

// All rows of one block of NV vectors of columns.
template <int NV, typename D, typename T = hn::TFromD<D>>
HWY_NOINLINE void column_block(D d, int64_t m, int64_t k, const T* a,
                               int64_t a_row, int64_t a_col, const T* b,
                               int64_t ldb, T* c, int64_t ldc,
                               bool accumulate) {
  constexpr int kRows =
      NV == 4 || HWY_TARGET != HWY_AVX3 ? 6 : (NV == 2 ? 12 : 8);
  int64_t i = 0;
  const auto rows = [&]<int MR>() {
    for (; i + MR <= m; i += MR) {
      micro_kernel<D, MR, NV>(d, k, a + i * a_row, a_row, a_col, b, ldb,
                              c + i * ldc, ldc, accumulate);
    }
  };
  // The transposed view's rows stand side by side: let the compiler know.
  const auto consecutive_rows = [&]<int MR>() {
    for (; i + MR <= m; i += MR) {
      micro_kernel<D, MR, NV>(d, k, a + i, 1, a_col, b, ldb, c + i * ldc, ldc,
                              accumulate);
    }
  };
  if (a_row == 1) consecutive_rows.template operator()<kRows>();
  rows.template operator()<kRows>();
  rows.template operator()<4>();
  rows.template operator()<2>();
  rows.template operator()<1>();
}

template <typename T>
void gemm(int64_t m, int64_t n, int64_t k, const T* a, int64_t a_row,
          int64_t a_col, const T* b, int64_t ldb, T* c, int64_t ldc,
          bool accumulate) {
  const hn::ScalableTag<T> d;
  constexpr int64_t kLanes = hn::MaxLanes(d);
  constexpr bool kManyRegisters = HWY_TARGET == HWY_AVX3;
  int64_t j = 0;
  if constexpr (kManyRegisters) {
    for (; j + 4 * kLanes <= n; j += 4 * kLanes) {
      column_block<4>(d, m, k, a, a_row, a_col, b + j, ldb, c + j, ldc,
                      accumulate);
    }
  }
  for (; j + 2 * kLanes <= n; j += 2 * kLanes) {
    column_block<2>(d, m, k, a, a_row, a_col, b + j, ldb, c + j, ldc,
                    accumulate);
  }
  for (; j + kLanes <= n; j += kLanes) {
    column_block<1>(d, m, k, a, a_row, a_col, b + j, ldb, c + j, ldc,
                    accumulate);
  }
  if constexpr (kManyRegisters) {  // half a vector, as for 8 projections
    const hn::Half<decltype(d)> half;
    for (; j + kLanes / 2 <= n; j += kLanes / 2) {
      column_block<1>(half, m, k, a, a_row, a_col, b + j, ldb, c + j, ldc,
                      accumulate);
    }
  }
  if (j == n) return;
  // The last columns, fewer than a vector: through padded copies, because a
  // masked load may touch memory past the end on some instruction sets.
  constexpr int64_t kDepth = 64, kHeight = 48;
  const int64_t rest = n - j;
  alignas(64) T b_tile[kDepth * kLanes] = {};
  alignas(64) T c_tile[kHeight * kLanes];
  for (int64_t i = 0; i < m; i += kHeight) {
    const int64_t height = std::min(kHeight, m - i);
    std::memset(c_tile, 0, sizeof(c_tile));
    if (accumulate) {
      for (int64_t r = 0; r < height; ++r) {
        std::memcpy(c_tile + r * kLanes, c + (i + r) * ldc + j,
                    rest * sizeof(T));
      }
    }
    for (int64_t p = 0; p < k; p += kDepth) {
      const int64_t depth = std::min(kDepth, k - p);
      for (int64_t r = 0; r < depth; ++r) {
        std::memcpy(b_tile + r * kLanes, b + (p + r) * ldb + j,
                    rest * sizeof(T));
      }
      column_block<1>(d, height, depth, a + i * a_row + p * a_col, a_row, a_col,
                      b_tile, kLanes, c_tile, kLanes, true);
    }
    for (int64_t r = 0; r < height; ++r) {
      std::memcpy(c + (i + r) * ldc + j, c_tile + r * kLanes, rest * sizeof(T));
    }
  }
}

template <typename T>
void transpose(int64_t rows, int64_t cols, const T* src, int64_t lds, T* dst,
               int64_t ldd) {
  // Blocks that keep both sides in L1; the inner loop writes whole rows.
  constexpr int64_t kBlock = 16;
  for (int64_t i0 = 0; i0 < rows; i0 += kBlock) {
    const int64_t i1 = std::min(rows, i0 + kBlock);
    for (int64_t j = 0; j < cols; ++j) {
      for (int64_t i = i0; i < i1; ++i) dst[j * ldd + i] = src[i * lds + j];
    }
  }
}

template <typename T, typename From>
void convert_rows(int64_t rows, int64_t cols, const From* src, int64_t lds,
                  T* dst, int64_t ldd) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) {
      dst[i * ldd + j] = static_cast<T>(src[i * lds + j]);
    }
  }
}

HWY_INLINE void bfloat16_to_float(int64_t count, const uint16_t* src,
                                  float* dst) {
  for (int64_t j = 0; j < count; ++j) {
    const uint32_t bits = static_cast<uint32_t>(src[j]) << 16;
    std::memcpy(dst + j, &bits, sizeof(bits));
  }
}

HWY_INLINE void float_to_bfloat16(int64_t count, const float* src,
                                  uint16_t* dst) {
  for (int64_t j = 0; j < count; ++j) {
    uint32_t bits;
    std::memcpy(&bits, src + j, sizeof(bits));
    const uint32_t rounded = bits + 0x7FFF + ((bits >> 16) & 1);
    const bool is_nan = (bits & 0x7FFFFFFF) > 0x7F800000;
    dst[j] =
        static_cast<uint16_t>((is_nan ? (bits | 0x400000) : rounded) >> 16);
  }
}

HWY_INLINE void half_to_float(int64_t count, const c10::Half* src, float* dst) {
  int64_t j = 0;
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  const hn::ScalableTag<float> d;
  const hn::Rebind<hwy::float16_t, decltype(d)> dh;
  const auto* bits = reinterpret_cast<const hwy::float16_t*>(src);
  constexpr int64_t kLanes = hn::MaxLanes(d);
  for (; j + kLanes <= count; j += kLanes) {
    hn::StoreU(hn::PromoteTo(d, hn::LoadU(dh, bits + j)), d, dst + j);
  }
#endif
  for (; j < count; ++j) dst[j] = static_cast<float>(src[j]);
}

HWY_INLINE void float_to_half(int64_t count, const float* src, c10::Half* dst) {
  int64_t j = 0;
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  const hn::ScalableTag<float> d;
  const hn::Rebind<hwy::float16_t, decltype(d)> dh;
  auto* bits = reinterpret_cast<hwy::float16_t*>(dst);
  constexpr int64_t kLanes = hn::MaxLanes(d);
  for (; j + kLanes <= count; j += kLanes) {
    hn::StoreU(hn::DemoteTo(dh, hn::LoadU(d, src + j)), dh, bits + j);
  }
#endif
  for (; j < count; ++j) dst[j] = c10::Half(src[j]);
}

template <typename T>
void load(Scalar type, int64_t rows, int64_t cols, const void* src, int64_t lds,
          T* dst, int64_t ldd) {
  switch (type) {
    case Scalar::kFloat:
      convert_rows(rows, cols, static_cast<const float*>(src), lds, dst, ldd);
      return;
    case Scalar::kDouble:
      convert_rows(rows, cols, static_cast<const double*>(src), lds, dst, ldd);
      return;
    case Scalar::kBFloat16:
      for (int64_t i = 0; i < rows; ++i) {
        if constexpr (std::is_same_v<T, float>) {
          bfloat16_to_float(cols, static_cast<const uint16_t*>(src) + i * lds,
                            dst + i * ldd);
        }
      }
      return;
    case Scalar::kHalf:
      for (int64_t i = 0; i < rows; ++i) {
        if constexpr (std::is_same_v<T, float>) {
          half_to_float(cols, static_cast<const c10::Half*>(src) + i * lds,
                        dst + i * ldd);
        }
      }
      return;
  }
}

template <typename T>
void store(Scalar type, int64_t rows, int64_t cols, const T* src, int64_t lds,
           void* dst, int64_t ldd) {
  switch (type) {
    case Scalar::kFloat:
      convert_rows(rows, cols, src, lds, static_cast<float*>(dst), ldd);
      return;
    case Scalar::kDouble:
      convert_rows(rows, cols, src, lds, static_cast<double*>(dst), ldd);
      return;
    case Scalar::kBFloat16:
      for (int64_t i = 0; i < rows; ++i) {
        if constexpr (std::is_same_v<T, float>) {
          float_to_bfloat16(cols, src + i * lds,
                            static_cast<uint16_t*>(dst) + i * ldd);
        }
      }
      return;
    case Scalar::kHalf:
      for (int64_t i = 0; i < rows; ++i) {
        if constexpr (std::is_same_v<T, float>) {
          float_to_half(cols, src + i * lds,
                        static_cast<c10::Half*>(dst) + i * ldd);
        }
      }
      return;
  }
}

template <typename T>
void row_dots(int64_t rows, int64_t cols, const T* a, int64_t lda, const T* b,
              int64_t ldb, T* out) {
  const hn::ScalableTag<T> d;
  constexpr int64_t kLanes = hn::MaxLanes(d);
  for (int64_t i = 0; i < rows; ++i) {
    const T* x = a + i * lda;
    const T* y = b + i * ldb;
    auto sum = hn::Zero(d);
    int64_t j = 0;
    for (; j + kLanes <= cols; j += kLanes) {
      sum = hn::MulAdd(hn::LoadU(d, x + j), hn::LoadU(d, y + j), sum);
    }
    // As in gemm, multiply and add in one rounding: a softmax's backward
    // subtracts one's result from the other's.
    const hn::CappedTag<T, 1> d1;
    auto total = hn::Set(d1, hn::GetLane(hn::SumOfLanes(d, sum)));
    for (; j < cols; ++j) {
      total = hn::MulAdd(hn::Set(d1, x[j]), hn::Set(d1, y[j]), total);
    }
    out[i] = hn::GetLane(total);
  }
}

template <typename T>
void scale_rows(int64_t rows, int64_t cols, T* a, int64_t lda,
                const T* factor) {
  for (int64_t i = 0; i < rows; ++i) {
    const T f = factor[i];
    for (int64_t j = 0; j < cols; ++j) a[i * lda + j] *= f;
  }
}

template <typename T>
void add_rows(int64_t rows, int64_t cols, const T* a, int64_t lda,
              const T* factor, T* out) {
  for (int64_t i = 0; i < rows; ++i) {
    const T f = factor == nullptr ? T(1) : factor[i];
    const T* x = a + i * lda;
    for (int64_t j = 0; j < cols; ++j) out[j] += f * x[j];
  }
}

template <typename T>
void add_outer(int64_t rows, int64_t cols, const T* x, const T* y, T* c,
               int64_t ldc) {
  for (int64_t i = 0; i < rows; ++i) {
    const T f = x == nullptr ? T(1) : x[i];
    for (int64_t j = 0; j < cols; ++j) c[i * ldc + j] += f * y[j];
  }
}

template <typename T>
void add(int64_t count, const T* src, T* dst) {
  for (int64_t j = 0; j < count; ++j) dst[j] += src[j];
}

template <typename T>
const TileKernels<T>* table() {
  static constexpr TileKernels<T> kKernels = {
      HWY_TARGET == HWY_AVX3 ? int64_t(32 / sizeof(T))
                             : int64_t(hn::MaxLanes(hn::ScalableTag<T>())),
      gemm<T>,
      transpose<T>,
      load<T>,
      store<T>,
      row_dots<T>,
      scale_rows<T>,
      add_rows<T>,
      add_outer<T>,
      add<T>};
  return &kKernels;
}

const TileKernels<float>* float_tile_kernels() { return table<float>(); }
const TileKernels<double>* double_tile_kernels() { return table<double>(); }

}  // namespace luna::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace luna::cpu {
HWY_EXPORT(float_tile_kernels);
HWY_EXPORT(double_tile_kernels);

template <>
const TileKernels<float>& tile_kernels<float>() {
  static const auto* kernels = [] {
    apply_isa_override();
    return HWY_DYNAMIC_DISPATCH(float_tile_kernels)();
  }();
  return *kernels;
}

template <>
const TileKernels<double>& tile_kernels<double>() {
  static const auto* kernels = [] {
    apply_isa_override();
    return HWY_DYNAMIC_DISPATCH(double_tile_kernels)();
  }();
  return *kernels;
}

}  // namespace luna::cpu
#endif
