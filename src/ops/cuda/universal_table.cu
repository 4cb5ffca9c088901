// universal_table on the GPU, without a word to the host: knots are ranked by
// counting, cells filled by search, and each row of slopes and intercepts is
// summed on its own (a few hundred thousand products in all).

#include "ops/cuda/universal_table.h"

#include <cmath>

#include "ops/cuda/psi.cuh"
#include "ops/cuda/tile.cuh"

namespace luna::cuda {
namespace {

__device__ float next_below(float x) { return nextafterf(x, -INFINITY); }
__device__ double next_below(double x) { return nextafter(x, -INFINITY); }
__device__ float next_above(float x) { return nextafterf(x, INFINITY); }
__device__ double next_above(double x) { return nextafter(x, INFINITY); }

/// The largest T that is not to the right of -b / w. The quotient's own
/// rounding is undone by its residual, which a fused multiply-add has exactly.
template <typename T>
__device__ T boundary_of(T w, T b) {
  if (w == T(0)) return b > T(0) ? -T(INFINITY) : T(INFINITY);
  T near = -b / w;
  if (!isfinite(near)) return near;
  // w near + b > 0 means near > knot for w > 0, near < knot for w < 0.
  const T residual = fma(w, near, b);
  if (w > T(0)) {
    return residual > T(0) ? next_below(near) : near;
  }
  if (residual > T(0)) near = next_above(near);
  return next_below(near);
}

template <typename T>
__global__ void rank_kernel(TableShape s, TableParameters<T> p, T* table) {
  using Index = typename Psi<T>::Index;
  __shared__ T others[kThreads];
  const int64_t own = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const bool live = own < s.knots;
  const T boundary =
      live ? boundary_of(p.hidden_weight[own], p.hidden_bias[own]) : T(0);
  int64_t rank = 0;
  for (int64_t first = 0; first < s.knots; first += kThreads) {
    const int64_t other = first + threadIdx.x;
    __syncthreads();
    if (other < s.knots) {
      others[threadIdx.x] =
          boundary_of(p.hidden_weight[other], p.hidden_bias[other]);
    }
    __syncthreads();
    const int64_t left = s.knots - first;
    const int count = left < kThreads ? static_cast<int>(left) : kThreads;
    for (int i = 0; i < count; ++i) {
      rank += others[i] < boundary || (others[i] == boundary && first + i < own)
                  ? 1
                  : 0;
    }
  }
  if (live) {
    table[s.boundary_at + rank] = boundary;
    reinterpret_cast<Index*>(table + s.rank_at)[own] = static_cast<Index>(rank);
  }
  if (own < ops::UniversalTableLayout::kProbe) {
    table[s.boundary_at + s.knots + own] = T(INFINITY);
  }
}

// One block: the grid over the middle knots, then where each cell begins.
template <typename T>
__global__ void cells_kernel(TableShape s, T* table) {
  using Index = typename Psi<T>::Index;
  const T* sorted = table + s.boundary_at;
  __shared__ T low, scale;
  if (threadIdx.x == 0) {
    int64_t first = 0, last = s.knots;
    while (first < s.knots && !isfinite(sorted[first])) ++first;
    while (last > first && !isfinite(sorted[last - 1])) --last;
    low = scale = T(0);
    if (const int64_t finite = last - first; finite > 0) {
      low = sorted[first + finite / 20];
      const T width = sorted[first + finite - 1 - finite / 20] - low;
      scale = width > T(0) ? static_cast<T>(s.cells) / width : T(0);
      if (!isfinite(scale)) scale = T(0);
    }
    table[0] = low;
    table[1] = scale;
  }
  __syncthreads();
  // cell(boundary r) never falls with r: begin[c] = first r with cell >= c.
  auto* begin = reinterpret_cast<Index*>(table + s.cell_begin_at);
  const T top = static_cast<T>(s.cells - 1);
  for (int64_t c = threadIdx.x; c <= s.cells; c += blockDim.x) {
    int64_t from = 0, to = s.knots;
    while (from < to) {
      const int64_t middle = (from + to) / 2;
      const T at = (sorted[middle] - low) * scale;
      const T clamped = at > T(0) ? (at < top ? at : top) : T(0);
      if (static_cast<int64_t>(clamped) < c) {
        from = middle + 1;
      } else {
        to = middle;
      }
    }
    begin[c] = static_cast<Index>(c == s.cells ? s.knots : from);
  }
  for (int64_t i = s.rank_at + s.knots + threadIdx.x; i < s.rows_at;
       i += blockDim.x) {
    table[i] = T(0);
  }
}

/// Slope and intercept number `at` of the rows, from the units' ranks.
template <typename T, typename Ranks>
__device__ void table_row(const TableShape& s, const TableParameters<T>& p,
                          T* table, const Ranks* rank, int64_t at) {
  const int channels = static_cast<int>(s.channels);
  const int hidden = static_cast<int>(s.hidden);
  const int segment = static_cast<int>(at) / channels;
  const int c = static_cast<int>(at) % channels;
  const int trunk = s.trunks == 1 ? 0 : c * hidden;
  double slope = 0, intercept = p.output_bias[c];
#pragma unroll 8
  for (int j = 0; j < hidden; ++j) {
    const int unit = trunk + j;
    const T w = p.hidden_weight[unit], b = p.hidden_bias[unit];
    const bool right = segment > static_cast<int>(rank[unit]);
    const bool active = w < T(0) ? !right : right && (w > T(0) || b > T(0));
    const T out = p.output_weight[c * hidden + j];
    const double o = active ? out : T(0);
    slope += o * static_cast<double>(w);
    intercept += o * static_cast<double>(b);
  }
  T* row = table + s.rows_at + static_cast<int64_t>(segment) * 2 * channels;
  row[c] = static_cast<T>(slope);
  row[s.channels + c] = static_cast<T>(intercept);
}

template <typename T>
__global__ void rows_kernel(TableShape s, TableParameters<T> p, T* table) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= (s.knots + 1) * s.channels) return;
  table_row(s, p, table,
            reinterpret_cast<const typename Psi<T>::Index*>(table + s.rank_at),
            at);
}

// All of it in one launch, for tables of the usual sizes: every block ranks
// all knots for itself in shared memory, then does its share of the rest.
constexpr int64_t kSmallKnots = 1024;  // and output weights
constexpr int kTableThreads = 256;

template <typename T>
__global__ void small_table_kernel(TableShape s, TableParameters<T> p,
                                   T* table) {
  using Index = typename Psi<T>::Index;
  extern __shared__ double2 memory[];
  T* boundary = reinterpret_cast<T*>(memory);
  T* sorted = boundary + (s.knots + 3) / 4 * 4;
  const int knots = static_cast<int>(s.knots);
  const int channels = static_cast<int>(s.channels);
  const int hidden = static_cast<int>(s.hidden);
  // What each unit adds to a channel's slope and intercept where it is active;
  // `kind`: 1 active to the right of its knot, -1 to the left, 0 nowhere.
  double2* terms = reinterpret_cast<double2*>(sorted + (knots + 3) / 4 * 4);
  int* rank = reinterpret_cast<int*>(terms + channels * hidden);
  int* kind = rank + knots;
  __shared__ T low, scale;
  for (int i = threadIdx.x; i < knots; i += kTableThreads) {
    boundary[i] = boundary_of(p.hidden_weight[i], p.hidden_bias[i]);
    sorted[i] = T(INFINITY);
    kind[i] = p.hidden_weight[i] < T(0)   ? -1
              : p.hidden_weight[i] > T(0) ? 1
                                          : (p.hidden_bias[i] > T(0) ? 1 : 0);
  }
  for (int i = threadIdx.x; i < channels * hidden; i += kTableThreads) {
    const int unit = s.trunks == 1 ? i % hidden : i;
    const double o = p.output_weight[i];
    terms[i] = make_double2(o * p.hidden_weight[unit], o * p.hidden_bias[unit]);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < knots; i += kTableThreads) {
    const T own = boundary[i];
    int below = 0;
    // Equal ones count from lower places only; which places are lower is the
    // same for the whole warp but in its own 32.
    const int from = i / 32 * 32, to = from + 32 < knots ? from + 32 : knots;
#pragma unroll 8
    for (int j = 0; j < from; ++j) below += boundary[j] <= own;
    for (int j = from; j < to; ++j) {
      const T other = boundary[j];
      below += other < own || (other == own && j < i) ? 1 : 0;
    }
#pragma unroll 8
    for (int j = to; j < knots; ++j) below += boundary[j] < own;
    rank[i] = below;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < knots; i += kTableThreads) {
    sorted[rank[i]] = boundary[i];
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    int first = 0, last = knots;
    while (first < knots && !isfinite(sorted[first])) ++first;
    while (last > first && !isfinite(sorted[last - 1])) --last;
    low = scale = T(0);
    if (const int finite = last - first; finite > 0) {
      low = sorted[first + finite / 20];
      const T width = sorted[first + finite - 1 - finite / 20] - low;
      scale = width > T(0) ? static_cast<T>(s.cells) / width : T(0);
      if (!isfinite(scale)) scale = T(0);
    }
  }
  __syncthreads();
  const int64_t own =
      static_cast<int64_t>(blockIdx.x) * kTableThreads + threadIdx.x;
  const int64_t all = static_cast<int64_t>(gridDim.x) * kTableThreads;
  if (own < 2) table[own] = own == 0 ? low : scale;
  for (int64_t i = own; i < knots + ops::UniversalTableLayout::kProbe;
       i += all) {
    table[s.boundary_at + i] = i < knots ? sorted[i] : T(INFINITY);
  }
  auto* ranks = reinterpret_cast<Index*>(table + s.rank_at);
  for (int64_t i = own; i < s.rows_at - s.rank_at; i += all) {
    if (i < knots) {
      ranks[i] = static_cast<Index>(rank[i]);
    } else {
      table[s.rank_at + i] = T(0);
    }
  }
  auto* begin = reinterpret_cast<Index*>(table + s.cell_begin_at);
  const T top = static_cast<T>(s.cells - 1);
  for (int64_t c = own; c <= s.cells; c += all) {
    int from = 0, to = knots;
    while (from < to) {
      const int middle = (from + to) / 2;
      const T at = (sorted[middle] - low) * scale;
      const T clamped = at > T(0) ? (at < top ? at : top) : T(0);
      if (static_cast<int>(clamped) < static_cast<int>(c)) {
        from = middle + 1;
      } else {
        to = middle;
      }
    }
    begin[c] = static_cast<Index>(c == s.cells ? knots : from);
  }
  for (int at = static_cast<int>(own); at < (knots + 1) * channels;
       at += static_cast<int>(all)) {
    // Neighbours share the channel, so that they read the same terms.
    const int segment = at % (knots + 1), c = at / (knots + 1);
    const int* ranks_of = rank + (s.trunks == 1 ? 0 : c * hidden);
    const int* kinds_of = kind + (s.trunks == 1 ? 0 : c * hidden);
    double slope = 0, intercept = p.output_bias[c];
#pragma unroll 4
    for (int j = 0; j < hidden; ++j) {
      const bool right = segment > ranks_of[j];
      const int k = kinds_of[j];
      if (k != 0 && right == (k > 0)) {
        const double2 term = terms[c * hidden + j];
        slope += term.x;
        intercept += term.y;
      }
    }
    T* row = table + s.rows_at + static_cast<int64_t>(segment) * 2 * channels;
    row[c] = static_cast<T>(slope);
    row[channels + c] = static_cast<T>(intercept);
  }
}

}  // namespace

template <typename T>
void build_table(const TableShape& shape, const TableParameters<T>& parameters,
                 T* table, cudaStream_t stream) {
  const int64_t outputs = shape.channels * shape.hidden;
  if (shape.knots <= kSmallKnots && outputs <= kSmallKnots) {
    const int64_t padded = (shape.knots + 3) / 4 * 4;
    const auto memory = static_cast<size_t>(
        2 * padded * static_cast<int64_t>(sizeof(T)) + 16 * outputs +
        2 * shape.knots * static_cast<int64_t>(sizeof(int)));
    small_table_kernel<<<32, kTableThreads, memory, stream>>>(shape, parameters,
                                                              table);
    check_launch("universal_table");
    return;
  }
  const auto blocks = static_cast<unsigned>(blocks_for(shape.knots, kThreads));
  rank_kernel<<<blocks, kThreads, 0, stream>>>(shape, parameters, table);
  check_launch("universal_table, ranks");
  cells_kernel<<<1, 512, 0, stream>>>(shape, table);
  check_launch("universal_table, cells");
  const int64_t numbers = (shape.knots + 1) * shape.channels;
  rows_kernel<<<static_cast<unsigned>(blocks_for(numbers, kThreads)), kThreads,
                0, stream>>>(shape, parameters, table);
  check_launch("universal_table, rows");
}

template void build_table<float>(const TableShape&,
                                 const TableParameters<float>&, float*,
                                 cudaStream_t);
template void build_table<double>(const TableShape&,
                                  const TableParameters<double>&, double*,
                                  cudaStream_t);

}  // namespace luna::cuda
