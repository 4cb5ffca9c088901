// One token for each state, a block a state, in one launch: the state is on
// its way while the block makes the token's features.

#include <cmath>
#include <type_traits>

#include "ops/cuda/psi.cuh"
#include "ops/cuda/steps.h"
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

/// Features of the token's query and key by a warp, its share of the
/// projections: to query[], and times the weight to key[].
template <typename T>
__device__ void make_features(const Step<T>& p, const FeatureMap<T>& map,
                              int batch, int head, T weight, T* near, T* query,
                              T* key) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int width = static_cast<int>(map.width);
  const int projections = static_cast<int>(map.projections);
  const int channels = static_cast<int>(map.shape.channels);
  const int knots = static_cast<int>(map.shape.knots);
  const Psi<T> psi(map.shape, map.table);
  const bool is_near = knots <= kNearKnots;
  const T* weights =
      map.weight + (map.per_head ? head * projections : 0) * width;
  const T* biases = map.bias + (map.per_head ? head * projections : 0);
  const int64_t rows[2] = {row_at(p.query, batch, head, 0),
                           row_at(p.key, batch, head, 0)};
  if (is_near) {
    for (int i = threadIdx.x; i < knots; i += kThreads) {
      near[i] = psi.boundary[i];
    }
  }
  for (int m = warp; m < projections || m == warp; m += kWarps) {
    const bool live = m < projections;
    T u[2] = {0, 0};
    if (live) {
      const T bias = biases[m];
      for (int j = lane; j < width; j += 32) {
        const T w = weights[m * width + j];
        u[0] += w * load<T>(p.query.data, rows[0] + j, p.query.type);
        u[1] += w * load<T>(p.key.data, rows[1] + j, p.key.type);
      }
      u[0] = warp_sum(u[0]) + bias;
      u[1] = warp_sum(u[1]) + bias;
    }
    if (m == warp) __syncthreads();  // boundaries are there
    if (!live) break;
    // The first half of the warp has the query's channels.
    const int side = lane / 16;
    int segment[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      segment[i] =
          is_near ? count_below(near, knots, u[i]) : psi.segment_of(u[i]);
    }
    const T own = side == 0 ? u[0] : u[1];
    const T* row = psi.rows + (side == 0 ? segment[0] : segment[1]) *
                                  static_cast<int64_t>(2 * channels);
    for (int c = lane % 16; c < channels; c += 16) {
      const T value = row[c] * own + row[channels + c];
      const T feature =
          (map.nonneg && value < T(0) ? T(0) : value) * map.factor;
      if (side == 0) {
        query[m * channels + c] = feature;
      } else {
        key[m * channels + c] = feature * weight;
      }
    }
  }
}

template <typename T, bool kMapped>
__global__ void __launch_bounds__(kThreads, sizeof(T) == 4 ? 5 : 2)
    step_kernel(const __grid_constant__ Step<T> p,
                const __grid_constant__ FeatureMap<T> map) {
  extern __shared__ double2 memory[];
  const int features = static_cast<int>(p.features);
  const int width = static_cast<int>(p.width);
  const int ld = width + 1;
  T* query = reinterpret_cast<T*>(memory);
  T* key = query + features;
  __shared__ T parts[kGroups][kColumns];
  __shared__ T last[kWarps];
  const int heads = static_cast<int>(p.heads);
  const int head = static_cast<int>(blockIdx.x) % heads;
  const int batch = static_cast<int>(blockIdx.x) / heads;
  T* state = p.state + static_cast<int64_t>(blockIdx.x) * features * ld;
  const int thread = static_cast<int>(threadIdx.x);
  const int column = thread % kColumns, group = thread / kColumns;
  wait_for_previous_launch();
  allow_next_launch();

  T rows[kAhead];
  const auto fetch = [&](int n, int f0) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int f = f0 + group + i * kGroups;
      rows[i] = n < width && f < features ? state[f * ld + n] : T(0);
    }
  };
  fetch(column, 0);
  T z = thread < features ? state[thread * ld + width] : T(0);
  const int64_t v = row_at(p.value, batch, head, 0);
  T x = column < width ? load<T>(p.value.data, v + column, p.value.type) : T(0);
  const T weight = factor_of(p.weight, batch, head, 0);
  if constexpr (kMapped) {
    make_features(p, map, batch, head, weight, key + features, query, key);
  } else {
    const int64_t q = row_at(p.query, batch, head, 0);
    const int64_t k = row_at(p.key, batch, head, 0);
    for (int f = thread; f < features; f += kThreads) {
      query[f] = load<T>(p.query.data, q + f, p.query.type);
      key[f] = weight * load<T>(p.key.data, k + f, p.key.type);
    }
  }
  __syncthreads();

  T den = 0;
  for (int f = thread; f < features; f += kThreads) {
    T* at = state + f * ld + width;
    if (f >= kThreads) z = *at;
    const T sum = z + key[f];
    if (weight != T(0)) *at = sum;  // else as it was
    den += query[f] * sum;
  }
  den = warp_sum(den);
  if (thread % 32 == 0) last[thread / 32] = den;
  const int64_t out = row_at(p.out, batch, head, 0);
  for (int n0 = 0; n0 < width; n0 += kColumns) {
    const int n = n0 + column;
    if (n0 > 0) {
      x = n < width ? load<T>(p.value.data, v + n, p.value.type) : T(0);
    }
    T total = 0;
    for (int f0 = 0; f0 < features; f0 += kAhead * kGroups) {
      if (n0 > 0 || f0 > 0) fetch(n, f0);
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int f = f0 + group + i * kGroups;
        if (n < width && f < features) {
          const T sum = rows[i] + key[f] * x;
          if (weight != T(0)) state[f * ld + n] = sum;
          total += query[f] * sum;
        }
      }
    }
    if (n0 > 0) __syncthreads();  // parts of the columns before are read
    parts[group][column] = total;
    __syncthreads();
    if (group == 0 && n < width) {
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
  if constexpr (std::is_same_v<T, float>) {
    if (advance_square_states(p, kMapped ? &map : nullptr, stream)) return;
  }
  const int64_t near =
      kMapped && map.shape.knots <= kNearKnots ? map.shape.knots : 0;
  const auto shared = static_cast<size_t>((2 * p.features + near) * sizeof(T));
  launch_after(
      step_kernel<T, kMapped>, static_cast<unsigned>(p.batch * p.heads),
      kThreads, shared, stream,
      kMapped ? "universal_attention_step" : "linear_attention_step", p, map);
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
