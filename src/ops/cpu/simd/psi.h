#pragma once

#include <cstdint>
#include <type_traits>

#include "ops/universal_table.h"

// psi of universal attention on tiles: look-ups in the table of
// ops/universal_table.h, and their way back.

namespace luna::cpu {

template <typename T>
struct PsiTable {
  using Index = std::conditional_t<std::is_same_v<T, double>, int64_t, int32_t>;

  PsiTable(const T* data, const ops::UniversalTableLayout& layout)
      : low(data[0]),
        scale(data[1]),
        last_cell(static_cast<int32_t>(layout.cells() - 1)),
        channels(layout.channels),
        boundary(data + layout.boundary_at()),
        cell_begin(
            reinterpret_cast<const Index*>(data + layout.cell_begin_at())),
        rank(reinterpret_cast<const Index*>(data + layout.rank_at())),
        rows(data + layout.rows_at()) {}

  T low, scale;
  int32_t last_cell;
  int64_t channels;
  const T* boundary;
  const Index* cell_begin;
  const Index* rank;
  const T* rows;
};

template <typename T>
struct PsiKernels {
  /// segment[t * projections + i] of u[t * ldu + i].
  void (*find)(const PsiTable<T>& table, int64_t tokens, int64_t projections,
               const T* u, int64_t ldu, int32_t* segment);
  /// phi[t * ldphi + i * L + c] = factor * psi_c(u[t * ldu + i]).
  void (*values)(const PsiTable<T>& table, int64_t tokens, int64_t projections,
                 const T* u, int64_t ldu, const int32_t* segment, T factor,
                 bool nonneg, T* phi, int64_t ldphi);
  /// From dphi to du, and per segment and channel to the sums of g and of
  /// g u, g the gradient of psi_c: sums[segment][2 L] += (g..., g u...).
  void (*backward)(const PsiTable<T>& table, int64_t tokens,
                   int64_t projections, const T* u, int64_t ldu,
                   const int32_t* segment, T factor, bool nonneg, const T* phi,
                   int64_t ldphi, const T* dphi, int64_t lddphi, T* du,
                   T* sums);
};

template <typename T>
const PsiKernels<T>& psi_kernels();
template <>
const PsiKernels<float>& psi_kernels<float>();
template <>
const PsiKernels<double>& psi_kernels<double>();

}  // namespace luna::cpu
