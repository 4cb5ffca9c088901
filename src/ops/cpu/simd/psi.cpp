#include "ops/cpu/simd/psi.h"

#include <algorithm>
#include <limits>

#include "ops/cpu/simd/isa.h"
#include "ops/cpu/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/simd/psi.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h comes first: highway.h is then read once for each target.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace luna::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The number of boundaries < u, all of those before `begin` among them.
template <typename T>
HWY_INLINE int32_t segment_of(const PsiTable<T>& table, int32_t cell, T u) {
  constexpr int kProbe = ops::UniversalTableLayout::kProbe;
  const auto begin = static_cast<int32_t>(table.cell_begin[cell]);
  const T* boundary = table.boundary + begin;
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  const hn::FixedTag<T, kProbe> d;
  const auto below = static_cast<int32_t>(
      hn::CountTrue(d, hn::Lt(hn::LoadU(d, boundary), hn::Set(d, u))));
#else
  int32_t below = 0;
  for (int i = 0; i < kProbe; ++i) below += boundary[i] < u ? 1 : 0;
#endif
  if (HWY_LIKELY(below < kProbe)) return begin + below;
  const auto* end = table.boundary + table.cell_begin[cell + 1];
  return static_cast<int32_t>(std::lower_bound(boundary + kProbe, end, u) -
                              table.boundary);
}

template <typename T>
void find(const PsiTable<T>& table, int64_t tokens, int64_t projections,
          const T* u, int64_t ldu, int32_t* segment) {
  const T low = table.low, scale = table.scale;
  const T last = static_cast<T>(table.last_cell);
  for (int64_t t = 0; t < tokens; ++t) {
    const T* row = u + t * ldu;
    int32_t* out = segment + t * projections;
    for (int64_t i = 0; i < projections; ++i) {
      // A NaN fails the first comparison and lands in cell 0.
      const T cell = (row[i] - low) * scale;
      const T clamped = cell > T(0) ? (cell < last ? cell : last) : T(0);
      out[i] = static_cast<int32_t>(clamped);
    }
    for (int64_t i = 0; i < projections; ++i) {
      out[i] = segment_of(table, out[i], row[i]);
    }
  }
}

// L is a compile-time constant for the usual channel counts (0: any), so that
// the compiler turns the loops over channels into whole vectors.
template <int L, typename T>
void values_of(const PsiTable<T>& table, int64_t tokens, int64_t projections,
               const T* u, int64_t ldu, const int32_t* segment, T factor,
               bool nonneg, T* phi, int64_t ldphi) {
  const int64_t channels = L > 0 ? L : table.channels;
  // Written so that a NaN stays one: only numbers below the floor are cut.
  const T floor = nonneg ? T(0) : -std::numeric_limits<T>::infinity();
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t i = 0; i < projections; ++i) {
      const T x = u[t * ldu + i];
      const T* slope = table.rows + 2 * channels * segment[t * projections + i];
      const T* intercept = slope + channels;
      T* out = phi + t * ldphi + i * channels;
#pragma omp simd
      for (int64_t c = 0; c < channels; ++c) {
        const T value = slope[c] * x + intercept[c];
        out[c] = (value < floor ? T(0) : value) * factor;
      }
    }
  }
}

template <int L, typename T>
void backward_of(const PsiTable<T>& table, int64_t tokens, int64_t projections,
                 const T* u, int64_t ldu, const int32_t* segment, T factor,
                 bool nonneg, const T* phi, int64_t ldphi, const T* dphi,
                 int64_t lddphi, T* du, T* sums) {
  const int64_t channels = L > 0 ? L : table.channels;
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t i = 0; i < projections; ++i) {
      const int64_t at = 2 * channels * segment[t * projections + i];
      const T x = u[t * ldu + i];
      const T* slope = table.rows + at;
      const T* value = phi + t * ldphi + i * channels;
      const T* upstream = dphi + t * lddphi + i * channels;
      T* sum = sums + at;
      T total = 0;
#pragma omp simd reduction(+ : total)
      for (int64_t c = 0; c < channels; ++c) {
        const T g =
            (nonneg && !(value[c] > T(0))) ? T(0) : upstream[c] * factor;
        sum[c] += g;
        sum[channels + c] += g * x;
        total += g * slope[c];
      }
      du[t * ldu + i] = total;
    }
  }
}

template <typename T>
void values(const PsiTable<T>& table, int64_t tokens, int64_t projections,
            const T* u, int64_t ldu, const int32_t* segment, T factor,
            bool nonneg, T* phi, int64_t ldphi) {
  const auto run = [&]<int L>() {
    values_of<L>(table, tokens, projections, u, ldu, segment, factor, nonneg,
                 phi, ldphi);
  };
  switch (table.channels) {
    case 4:
      return run.template operator()<4>();
    case 8:
      return run.template operator()<8>();
    case 16:
      return run.template operator()<16>();
    default:
      return run.template operator()<0>();
  }
}

template <typename T>
void backward(const PsiTable<T>& table, int64_t tokens, int64_t projections,
              const T* u, int64_t ldu, const int32_t* segment, T factor,
              bool nonneg, const T* phi, int64_t ldphi, const T* dphi,
              int64_t lddphi, T* du, T* sums) {
  const auto run = [&]<int L>() {
    backward_of<L>(table, tokens, projections, u, ldu, segment, factor, nonneg,
                   phi, ldphi, dphi, lddphi, du, sums);
  };
  switch (table.channels) {
    case 4:
      return run.template operator()<4>();
    case 8:
      return run.template operator()<8>();
    case 16:
      return run.template operator()<16>();
    default:
      return run.template operator()<0>();
  }
}

template <typename T>
const PsiKernels<T>* table() {
  static constexpr PsiKernels<T> kKernels = {find<T>, values<T>, backward<T>};
  return &kKernels;
}

const PsiKernels<float>* float_psi_kernels() { return table<float>(); }
const PsiKernels<double>* double_psi_kernels() { return table<double>(); }

}  // namespace luna::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace luna::cpu {
HWY_EXPORT(float_psi_kernels);
HWY_EXPORT(double_psi_kernels);

template <>
const PsiKernels<float>& psi_kernels<float>() {
  static const auto* kernels = [] {
    apply_isa_override();
    return HWY_DYNAMIC_DISPATCH(float_psi_kernels)();
  }();
  return *kernels;
}

template <>
const PsiKernels<double>& psi_kernels<double>() {
  static const auto* kernels = [] {
    apply_isa_override();
    return HWY_DYNAMIC_DISPATCH(double_psi_kernels)();
  }();
  return *kernels;
}

}  // namespace luna::cpu
#endif
