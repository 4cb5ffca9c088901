#pragma once

#include <type_traits>

#include "ops/cuda/universal_table.h"

// Look-ups in the table of ops/universal_table.h.

namespace luna::cuda {

template <typename T>
struct Psi {
  using Index = std::conditional_t<std::is_same_v<T, double>, int64_t, int32_t>;

  __device__ Psi(const TableShape& shape, const T* table)
      : low(table[0]),
        scale(table[1]),
        last_cell(static_cast<T>(shape.cells - 1)),
        boundary(table + shape.boundary_at),
        cell_begin(reinterpret_cast<const Index*>(table + shape.cell_begin_at)),
        rows(table + shape.rows_at) {}

  __device__ int cell_of(T u) const {
    const T at = (u - low) * scale;  // a NaN lands in cell 0
    return static_cast<int>(at > T(0) ? (at < last_cell ? at : last_cell)
                                      : T(0));
  }
  /// The number of boundaries < u.
  __device__ int segment_of(T u) const {
    const int cell = cell_of(u);
    int begin = static_cast<int>(cell_begin[cell]);
    int end = static_cast<int>(cell_begin[cell + 1]);
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

  T low, scale, last_cell;
  const T* boundary;
  const Index* cell_begin;
  const T* rows;
};

}  // namespace luna::cuda
