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
    *at = sum;
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
          state[f * ld + n] = sum;
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

// --- States of 64 x 64 in float32 ---------------------------------------
//
// The state goes through shared memory in two copies by the copy engine, where
// there is one: no registers hold what is on its way, so that many states are.

constexpr int kSize = 64;
constexpr int kStateNumbers = kSize * (kSize + 1);

__device__ __forceinline__ uint32_t shared_at(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

/// By thread 0.
__device__ __forceinline__ void begin_fetch(float* to, const float* from,
                                            uint64_t* barrier) {
#if __CUDA_ARCH__ >= 900
  constexpr int kBytes = kStateNumbers * 4;
  asm volatile(
      "mbarrier.init.shared::cta.b64 [%0], 1;\n" ::"r"(shared_at(barrier)));
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(
                   shared_at(barrier)),
               "r"(kBytes)
               : "memory");
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
      "[%1], %2, [%3];\n" ::"r"(shared_at(to)),
      "l"(from), "r"(kBytes), "r"(shared_at(barrier))
      : "memory");
#endif
}
/// By all, after a barrier of the block.
template <int kCount>
__device__ __forceinline__ void end_fetch(float* to, const float* from,
                                          uint64_t* barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .pred p;\nAGAIN:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0;\n"
      "@p bra DONE;\nbra AGAIN;\nDONE:\n}\n" ::"r"(shared_at(barrier))
      : "memory");
#else
  for (int i = threadIdx.x; i < kStateNumbers; i += kCount) to[i] = from[i];
  __syncthreads();
#endif
}
/// By all; thread 0 waits for its end.
template <int kCount>
__device__ __forceinline__ void put_back(float* to, const float* from) {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile(
        "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n" ::"l"(
            to),
        "r"(shared_at(from)), "r"(kStateNumbers * 4)
        : "memory");
    asm volatile("cp.async.bulk.commit_group;\n" ::: "memory");
  }
#else
  __syncthreads();
  for (int i = threadIdx.x; i < kStateNumbers; i += kCount) to[i] = from[i];
#endif
}

__device__ __forceinline__ void wait_for_copy() {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.wait_group 0;\n" ::: "memory");
#endif
}

__device__ __forceinline__ float as_float(float x) { return x; }
__device__ __forceinline__ float as_float(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
__device__ __forceinline__ void assign(float& to, float x) { to = x; }
__device__ __forceinline__ void assign(__nv_bfloat16& to, float x) {
  to = __float2bfloat16_rn(x);
}
/// A head's row.
template <typename In>
__device__ __forceinline__ In* row_of(const Rows& rows, int batch, int head) {
  return static_cast<In*>(rows.data) + row_at(rows, batch, head, 0);
}

/// Features of 8 projections by 8 channels of tokens of width 64. A warp has
/// some of the 16 pairs of a projection and a side; all that they read but the
/// table's rows is asked for at once.
template <typename In, int kCount>
__device__ __forceinline__ void make_small_features(
    const Step<float>& p, const FeatureMap<float>& map, int batch, int head,
    float weight, float* near, float* query, float* key) {
  constexpr int kItems = 2 * 8 * 32 / kCount;  // of a warp
  constexpr int kEach = kNearKnots / kCount;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32, warp = thread / 32;
  const int knots = static_cast<int>(map.shape.knots);
  const float* weights = map.weight + (map.per_head ? head * 8 * kSize : 0);
  const float* biases = map.bias + (map.per_head ? head * 8 : 0);
  const float* boundaries = map.table + map.shape.boundary_at;
  const float* rows = map.table + map.shape.rows_at;
  const In* sides[2] = {row_of<In>(p.query, batch, head),
                        row_of<In>(p.key, batch, head)};
  float u[kItems], bias[kItems], boundary[kEach];
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int m = (warp * kItems + i) / 2;
    const In* from = (warp * kItems + i) % 2 == 0 ? sides[0] : sides[1];
    const float* w = weights + m * kSize;
    u[i] = fmaf(w[lane], as_float(from[lane]),
                w[lane + 32] * as_float(from[lane + 32]));
    bias[i] = biases[m];
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int at = i * kCount + thread;
    if (at < knots) boundary[i] = boundaries[at];
  }
  if (kItems ==
      1) {  // few states: the rows are fetched before it is known which
    for (int i = 32 * thread; i < (knots + 1) * 16; i += 32 * kCount) {
      asm volatile("prefetch.global.L2 [%0];\n" ::"l"(rows + i));
    }
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int at = i * kCount + thread;
    if (at < knots) near[at] = boundary[i];
  }
#pragma unroll
  for (int i = 0; i < kItems; ++i) u[i] = warp_sum(u[i]) + bias[i];
  __syncthreads();
  // Eight lanes for each pair.
  float own = u[0];
  int segment = 0;
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int found = count_below(near, knots, u[i]);
    if (i == 0 || lane / 8 == i) {
      own = u[i];
      segment = found;
    }
  }
  if (lane / 8 >= kItems) return;
  const int item = warp * kItems + lane / 8, c = lane % 8;
  const float value =
      fmaf(rows[segment * 16 + c], own, rows[segment * 16 + 8 + c]);
  const float feature = (map.nonneg && value < 0.f ? 0.f : value) * map.factor;
  if (item % 2 == 0) {
    query[item / 2 * 8 + c] = feature;
  } else {
    key[item / 2 * 8 + c] = feature * weight;
  }
}

/// kCount threads a state: few for many states, so that more of them are on
/// their way; many for few states.
template <typename In, bool kMapped, int kCount>
__global__ void __launch_bounds__(kCount)
    small_step_kernel(const __grid_constant__ Step<float> p,
                      const __grid_constant__ FeatureMap<float> map) {
  constexpr int kParts = kCount / kSize;
  constexpr int kLd = kSize + 1;
  __shared__ __align__(16) float sums[kStateNumbers];
  __shared__ float query[kSize], key[kSize], parts[kParts][kSize], last[2];
  __shared__ uint64_t barrier;
  extern __shared__ double2 memory[];
  const int heads = static_cast<int>(p.heads);
  const int head = static_cast<int>(blockIdx.x) % heads;
  const int batch = static_cast<int>(blockIdx.x) / heads;
  float* state = p.state + static_cast<int64_t>(blockIdx.x) * kStateNumbers;
  const int thread = static_cast<int>(threadIdx.x);
  const int column = thread % kSize, part = thread / kSize;
  if (thread == 0) begin_fetch(sums, state, &barrier);
  const float x = as_float(row_of<In>(p.value, batch, head)[column]);
  const float weight = factor_of(p.weight, batch, head, 0);
  if constexpr (kMapped) {
    make_small_features<In, kCount>(p, map, batch, head, weight,
                                    reinterpret_cast<float*>(memory), query,
                                    key);
  } else if (thread < kSize) {
    query[thread] = as_float(row_of<In>(p.query, batch, head)[thread]);
    key[thread] = weight * as_float(row_of<In>(p.key, batch, head)[thread]);
  }
  __syncthreads();
  end_fetch<kCount>(sums, state, &barrier);
  float total = 0;
#pragma unroll 8
  for (int f = part; f < kSize; f += kParts) {
    const float sum = fmaf(key[f], x, sums[f * kLd + column]);
    sums[f * kLd + column] = sum;
    total = fmaf(query[f], sum, total);
  }
  parts[part][column] = total;
  if (thread < kSize) {
    const float sum = sums[thread * kLd + kSize] + key[thread];
    sums[thread * kLd + kSize] = sum;
    const float den = warp_sum(query[thread] * sum);
    if (thread % 32 == 0) last[thread / 32] = den;
  }
  put_back<kCount>(state, sums);
  if (part > 0) return;
  total = 0;
#pragma unroll
  for (int i = 0; i < kParts; ++i) total += parts[i][column];
  const float scale =
      p.normalize ? 1.f / guarded(last[0] + last[1], p.eps) : 1.f;
  assign(row_of<In>(p.out, batch, head)[column], total * scale);
  if (thread == 0) wait_for_copy();
}

constexpr unsigned kFewStates = 128;

template <typename In, bool kMapped>
void launch_small(const Step<float>& p, const FeatureMap<float>& map,
                  cudaStream_t stream) {
  const auto states = static_cast<unsigned>(p.batch * p.heads);
  const auto near = static_cast<size_t>(kMapped ? map.shape.knots * 4 : 0);
  if (states <= kFewStates) {
    small_step_kernel<In, kMapped, 512><<<states, 512, near, stream>>>(p, map);
  } else {
    small_step_kernel<In, kMapped, 128><<<states, 128, near, stream>>>(p, map);
  }
}

/// Whether it was one for the kernel above.
template <bool kMapped>
bool try_small(const Step<float>& p, const FeatureMap<float>& map,
               cudaStream_t stream) {
  const Scalar type = p.query.type;
  const bool fits =
      p.features == kSize && p.width == kSize && p.key.type == type &&
      p.value.type == type && p.out.type == type &&
      reinterpret_cast<uintptr_t>(p.state) % 16 == 0 &&
      (!kMapped || (map.projections == 8 && map.shape.channels == 8 &&
                    map.width == kSize && map.shape.knots <= kNearKnots));
  if (!fits) return false;
  if (type == Scalar::kBFloat16) {
    launch_small<__nv_bfloat16, kMapped>(p, map, stream);
  } else if (type == Scalar::kFloat) {
    launch_small<float, kMapped>(p, map, stream);
  } else {
    return false;
  }
  return true;
}

template <typename T, bool kMapped>
void launch(const Step<T>& p, const FeatureMap<T>& map, cudaStream_t stream) {
  if (p.batch * p.heads == 0) return;
  constexpr const char* kName =
      kMapped ? "universal_attention_step" : "linear_attention_step";
  if constexpr (std::is_same_v<T, float>) {
    if (try_small<kMapped>(p, map, stream)) {
      check_launch(kName);
      return;
    }
  }
  const int64_t near =
      kMapped && map.shape.knots <= kNearKnots ? map.shape.knots : 0;
  const auto blocks = static_cast<unsigned>(p.batch * p.heads);
  const auto shared = static_cast<size_t>((2 * p.features + near) * sizeof(T));
  const auto kernel = step_kernel<T, kMapped>;
  if (shared > 48 * 1024) {
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         static_cast<int>(shared));
  }
  kernel<<<blocks, kThreads, shared, stream>>>(p, map);
  check_launch(kName);
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
