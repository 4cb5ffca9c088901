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
// all knots for itself in shared memory (by counting in lists of 64, then by
// search in the other lists), then does its share of the rest.
constexpr int64_t kSmallKnots = 1024;  // and output weights
constexpr int kTableThreads = 512;
constexpr int kTableBlocks = 64;
constexpr int kList = 64;
constexpr int kSplit = 8;  // threads that add up one number

/// How many of a sorted list are < x, or <= x.
template <typename T>
__device__ int count_below(const T* list, T x, bool or_equal) {
  int below = 0;
#pragma unroll
  for (int step = kList / 2; step > 0; step /= 2) {
    const T other = list[below + step - 1];
    if (other < x || (or_equal && other == x)) below += step;
  }
  const T other = list[below];
  return below + (other < x || (or_equal && other == x) ? 1 : 0);
}

/// Adds up over kSplit neighbouring threads.
__device__ double sum_of_split(double x) {
#pragma unroll
  for (int step = kSplit / 2; step > 0; step /= 2) {
    x += __shfl_xor_sync(0xffffffffu, x, step);
  }
  return x;
}

template <typename T>
__global__ void __launch_bounds__(kTableThreads)
    small_table_kernel(TableShape s, TableParameters<T> p, T* table) {
  using Index = typename Psi<T>::Index;
  extern __shared__ double2 memory[];
  allow_next_launch();
  const int knots = static_cast<int>(s.knots);
  const int lists = (knots + kList - 1) / kList;
  const int channels = static_cast<int>(s.channels);
  const int hidden = static_cast<int>(s.hidden);
  // What each unit adds to a channel's slope and intercept where it is active,
  // and in which segments it is: from .x on, before .y.
  double2* terms = memory;
  int2* active = reinterpret_cast<int2*>(terms + channels * hidden);
  T* boundary = reinterpret_cast<T*>(active + knots);
  T* sorted = boundary + lists * kList;
  int* rank = reinterpret_cast<int*>(sorted + lists * kList);
  __shared__ T low, scale;
  for (int i = threadIdx.x; i < lists * kList; i += kTableThreads) {
    // A NaN is below nothing.
    boundary[i] =
        i < knots ? boundary_of(p.hidden_weight[i], p.hidden_bias[i]) : T(NAN);
    sorted[i] = T(NAN);
  }
  for (int i = threadIdx.x; i < channels * hidden; i += kTableThreads) {
    const int unit = s.trunks == 1 ? i % hidden : i;
    const double o = p.output_weight[i];
    terms[i] = make_double2(o * p.hidden_weight[unit], o * p.hidden_bias[unit]);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < knots; i += kTableThreads) {
    const T own = boundary[i];
    const T* list = boundary + i / kList * kList;
    const int place = i % kList;
    int below = 0;
#pragma unroll 8
    for (int j = 0; j < kList; ++j) {
      const T other = list[j];
      below += other < own || (other == own && j < place) ? 1 : 0;
    }
    rank[i] = below;
    sorted[i / kList * kList + below] = own;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < knots; i += kTableThreads) {
    const T own = boundary[i];
    int below = rank[i];
#pragma unroll 4
    for (int list = 0; list < lists; ++list) {
      const int more =
          count_below(sorted + list * kList, own, list < i / kList);
      if (list != i / kList) below += more;
    }
    rank[i] = below;
    const T w = p.hidden_weight[i];
    const bool right = w > T(0) || (w == T(0) && p.hidden_bias[i] > T(0));
    active[i] = right      ? make_int2(below + 1, knots + 1)
                : w < T(0) ? make_int2(0, below + 1)
                           : make_int2(0, 0);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < knots; i += kTableThreads) {
    sorted[i] = T(INFINITY);
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
  const int own = static_cast<int>(blockIdx.x) * kTableThreads + threadIdx.x;
  constexpr int kAll = kTableBlocks * kTableThreads;
  if (own < 2) table[own] = own == 0 ? low : scale;
  for (int i = own; i < knots + ops::UniversalTableLayout::kProbe; i += kAll) {
    table[s.boundary_at + i] = i < knots ? sorted[i] : T(INFINITY);
  }
  auto* ranks = reinterpret_cast<Index*>(table + s.rank_at);
  for (int i = own; i < static_cast<int>(s.rows_at - s.rank_at); i += kAll) {
    if (i < knots) {
      ranks[i] = static_cast<Index>(rank[i]);
    } else {
      table[s.rank_at + i] = T(0);
    }
  }
  auto* begin = reinterpret_cast<Index*>(table + s.cell_begin_at);
  const T top = static_cast<T>(s.cells - 1);
  for (int c = own; c <= static_cast<int>(s.cells); c += kAll) {
    int from = 0, to = knots;
    while (from < to) {
      const int middle = (from + to) / 2;
      const T at = (sorted[middle] - low) * scale;
      const T clamped = at > T(0) ? (at < top ? at : top) : T(0);
      if (static_cast<int>(clamped) < c) {
        from = middle + 1;
      } else {
        to = middle;
      }
    }
    begin[c] = static_cast<Index>(c == s.cells ? knots : from);
  }
  // Neighbours share the channel, so that they read the same terms.
  const int items = (knots + 1) * channels * kSplit;
  for (int i = own; i < (items + 31) / 32 * 32; i += kAll) {
    const int segment = i / kSplit % (knots + 1);
    const int c = i / kSplit / (knots + 1);
    double slope = 0, intercept = 0;
    if (i < items) {
      const int2* units = active + (s.trunks == 1 ? 0 : c * hidden);
#pragma unroll 4
      for (int j = i % kSplit; j < hidden; j += kSplit) {
        const int2 where = units[j];
        if (segment >= where.x && segment < where.y) {
          const double2 term = terms[c * hidden + j];
          slope += term.x;
          intercept += term.y;
        }
      }
    }
    slope = sum_of_split(slope);
    intercept = sum_of_split(intercept);
    if (i >= items || i % kSplit != 0) continue;
    T* row = table + s.rows_at + static_cast<int64_t>(segment) * 2 * channels;
    row[c] = static_cast<T>(slope);
    row[channels + c] = static_cast<T>(intercept + p.output_bias[c]);
  }
}

}  // namespace

template <typename T>
void build_table(const TableShape& shape, const TableParameters<T>& parameters,
                 T* table, cudaStream_t stream) {
  const int64_t outputs = shape.channels * shape.hidden;
  if (shape.knots <= kSmallKnots && outputs <= kSmallKnots) {
    const int64_t padded = (shape.knots + kList - 1) / kList * kList;
    const auto memory = static_cast<size_t>(
        16 * outputs + 8 * shape.knots +
        2 * padded * static_cast<int64_t>(sizeof(T)) + 4 * shape.knots);
    small_table_kernel<<<kTableBlocks, kTableThreads, memory, stream>>>(
        shape, parameters, table);
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
