#pragma once

#include <cuda_runtime_api.h>

#include "ops/universal_table.h"

namespace luna::cuda {

/// Where the parts of a table stand in it (see ops/universal_table.h).
struct TableShape {
  explicit TableShape(const ops::UniversalTableLayout& l)
      : trunks(l.trunks),
        hidden(l.hidden),
        channels(l.channels),
        knots(l.knots()),
        cells(l.cells()),
        boundary_at(l.boundary_at()),
        cell_begin_at(l.cell_begin_at()),
        rank_at(l.rank_at()),
        rows_at(l.rows_at()) {}
  int64_t trunks, hidden, channels, knots, cells;
  int64_t boundary_at, cell_begin_at, rank_at, rows_at;
};

/// Parameters contiguous, in the table's dtype.
template <typename T>
struct TableParameters {
  const T *hidden_weight, *hidden_bias, *output_weight, *output_bias;
};

/// Builds the table; the same layout as on the CPU.
template <typename T>
void build_table(const TableShape& shape, const TableParameters<T>& parameters,
                 T* table, cudaStream_t stream);

}  // namespace luna::cuda
