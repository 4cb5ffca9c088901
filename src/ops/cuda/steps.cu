// One token for each state, a block a state, in one launch: the state is on
// its way while the block makes the token's features.

#include "ops/cuda/steps.h"

#include <cmath>

#include "ops/cuda/psi.cuh"
#include "ops/cuda/tile.cuh"

namespace luna::cuda {
namespace {

constexpr int kColumns = 64;
constexpr int kGroups = kThreads / kColumns;  // each every fourth feature
constexpr int kAhead = 16;                    // features a thread loads at once
constexpr int kWarps = kThreads / 32;

/// Boundaries that are kept in shared memory, so that no load has to wait for
/// another.
constexpr int64_t kNearKnots = 1024;

/// The number of boundaries < u, by a warp.
template <typename T>
__device__ int count_below(const T* sorted, int knots, T u) {
  const int lane = threadIdx.x % 32, stride = (knots + 31) / 32;
  const auto below = [&](int i) { return i < knots && sorted[i] < u; };
  // Lists of `stride` numbers: those that end below u, then the one that does
  // not.
  const int lists =
      __popc(__ballot_sync(0xffffffffu, below(lane * stride + stride - 1)));
  int count = lists * stride;
  for (int i = 0; i < stride; i += 32) {
    const bool in = i + lane < stride && below(lists * stride + i + lane);
    count += __popc(__ballot_sync(0xffffffffu, in));
  }
  return count < knots ? count : knots;
}

template <typename T, bool kMapped>
__global__ void __launch_bounds__(kThreads, sizeof(T) == 4 ? 5 : 2)
    step_kernel(const Step<T> p, const FeatureMap<T> map) {
  extern __shared__ double2 memory[];
  T* query = reinterpret_cast<T*>(memory);
  T* key = query + p.features;
  T* near = key + p.features;  // boundaries, where kMapped
  __shared__ T parts[kGroups][kColumns];
  __shared__ T last[kWarps];
  const int64_t head = blockIdx.x % p.heads, batch = blockIdx.x / p.heads;
  const int64_t ld = p.width + 1;
  T* state = p.state + static_cast<int64_t>(blockIdx.x) * p.features * ld;
  const int column = threadIdx.x % kColumns, group = threadIdx.x / kColumns;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

  T rows[kAhead];
  const auto fetch = [&](int64_t n, int64_t f0) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int64_t f = f0 + group + i * kGroups;
      rows[i] = n < p.width && f < p.features ? state[f * ld + n] : T(0);
    }
  };
  fetch(column, 0);
  T z = threadIdx.x < p.features ? state[threadIdx.x * ld + p.width] : T(0);
  const T weight = factor_of(p.weight, batch, head, 0);
  const int64_t q = row_at(p.query, batch, head, 0);
  const int64_t k = row_at(p.key, batch, head, 0);
  const int64_t v = row_at(p.value, batch, head, 0);
  T x =
      column < p.width ? load<T>(p.value.data, v + column, p.value.type) : T(0);
  if constexpr (kMapped) {
    const TableShape& s = map.shape;
    const Psi<T> psi(s, map.table);
    const bool is_near = s.knots <= kNearKnots;
    if (is_near) {
      for (int i = threadIdx.x; i < s.knots; i += kThreads) {
        near[i] = psi.boundary[i];
      }
    }
    const int64_t first = map.per_head ? head * map.projections : 0;
    const auto project = [&](int64_t item) {
      const bool of_query = item < map.projections;
      const int64_t m = first + item % map.projections;
      const Rows& from = of_query ? p.query : p.key;
      const T* w = map.weight + m * map.width;
      T u = 0;
      for (int64_t j = lane; j < map.width; j += 32) {
        u += w[j] * load<T>(from.data, (of_query ? q : k) + j, from.type);
      }
      return warp_sum(u) + map.bias[m];
    };
    const int64_t items = 2 * map.projections;
    // Two numbers at a time, so that their loads overlap.
    for (int64_t base = warp; base < items; base += 2 * kWarps) {
      T u[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int64_t item = base + i * kWarps;
        u[i] = item < items ? project(item) : T(0);
      }
      if (base == warp && is_near) __syncthreads();
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int64_t item = base + i * kWarps;
        if (item >= items) break;
        const int64_t segment =
            is_near ? count_below(near, static_cast<int>(s.knots), u[i])
                    : psi.segment_of(u[i]);
        const T* row = psi.rows + segment * 2 * s.channels;
        for (int64_t c = lane; c < s.channels; c += 32) {
          const T value = row[c] * u[i] + row[s.channels + c];
          const T feature =
              (map.nonneg && value < T(0) ? T(0) : value) * map.factor;
          const int64_t at = item % map.projections * s.channels + c;
          if (item < map.projections) {
            query[at] = feature;
          } else {
            key[at] = feature * weight;
          }
        }
      }
    }
    if (warp >= items && is_near) __syncthreads();
  } else {
    for (int64_t f = threadIdx.x; f < p.features; f += kThreads) {
      query[f] = load<T>(p.query.data, q + f, p.query.type);
      key[f] = weight * load<T>(p.key.data, k + f, p.key.type);
    }
  }
  __syncthreads();

  T den = 0;
  for (int64_t f = threadIdx.x; f < p.features; f += kThreads) {
    T* at = state + f * ld + p.width;
    if (f >= kThreads) z = *at;
    const T sum = z + key[f];
    *at = sum;
    den += query[f] * sum;
  }
  den = warp_sum(den);
  if (lane == 0) last[warp] = den;
  const int64_t out = row_at(p.out, batch, head, 0);
  for (int64_t n0 = 0; n0 < p.width; n0 += kColumns) {
    const int64_t n = n0 + column;
    if (n0 > 0) {
      x = n < p.width ? load<T>(p.value.data, v + n, p.value.type) : T(0);
    }
    T total = 0;
    for (int64_t f0 = 0; f0 < p.features; f0 += kAhead * kGroups) {
      if (n0 > 0 || f0 > 0) fetch(n, f0);
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int64_t f = f0 + group + i * kGroups;
        if (n < p.width && f < p.features) {
          const T sum = rows[i] + key[f] * x;
          state[f * ld + n] = sum;
          total += query[f] * sum;
        }
      }
    }
    if (n0 > 0) __syncthreads();  // parts of the columns before are read
    parts[group][column] = total;
    __syncthreads();
    if (group == 0 && n < p.width) {
      T sum = 0, scale = 1;
#pragma unroll
      for (int g = 0; g < kGroups; ++g) sum += parts[g][column];
      if (p.normalize) {
        T all = 0;
#pragma unroll
        for (int i = 0; i < kWarps; ++i) all += last[i];
        scale = T(1) / guarded(all, p.eps);
      }
      store<T>(p.out.data, out + n, p.out.type, sum * scale);
    }
  }
}

template <typename T, bool kMapped>
void launch(const Step<T>& p, const FeatureMap<T>& map, cudaStream_t stream) {
  if (p.batch * p.heads == 0) return;
  const int64_t near =
      kMapped && map.shape.knots <= kNearKnots ? map.shape.knots : 0;
  const auto shared = static_cast<size_t>((2 * p.features + near) * sizeof(T));
  if (shared > 48 * 1024) {
    cudaFuncSetAttribute(step_kernel<T, kMapped>,
                         cudaFuncAttributeMaxDynamicSharedMemorySize,
                         static_cast<int>(shared));
  }
  step_kernel<T, kMapped>
      <<<static_cast<unsigned>(p.batch * p.heads), kThreads, shared, stream>>>(
          p, map);
  check_launch(kMapped ? "universal_attention_step" : "linear_attention_step");
}

}  // namespace

template <typename T>
void advance_states(const Step<T>& p, cudaStream_t stream) {
  launch<T, false>(p, {}, stream);
}
template <typename T>
void advance_states(const Step<T>& p, const FeatureMap<T>& map,
                    cudaStream_t stream) {
  launch<T, true>(p, map, stream);
}

#define LUNA_INSTANTIATE(T)                                             \
  template void advance_states<T>(const Step<T>&, cudaStream_t);        \
  template void advance_states<T>(const Step<T>&, const FeatureMap<T>&, \
                                  cudaStream_t);
LUNA_INSTANTIATE(float)
LUNA_INSTANTIATE(double)
#undef LUNA_INSTANTIATE

}  // namespace luna::cuda
