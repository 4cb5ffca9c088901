#pragma once

#include <cuda_runtime_api.h>

#include "ops/universal_table.h"

namespace luna::cuda {

/// Where the parts of a table stand in it (see ops/universal_table.h).
struct TableShape {
  TableShape() = default;
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
  int64_t trunks = 0, hidden = 0, channels = 0, knots = 0, cells = 0;
  int64_t boundary_at = 0, cell_begin_at = 0, rank_at = 0, rows_at = 0;
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
