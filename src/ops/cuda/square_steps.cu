// Steps of float32 states of 64 features by 64 columns, of all features given
// or of 8 projections by 8 channels. The copy engine brings states to shared
// memory and takes them back, where there is one: while a block works on one
// state, the next is on its way.

#include <algorithm>

#include "ops/cuda/hopper.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/steps.h"
#include "ops/cuda/tile.cuh"
#include "ops/gpu_paths.h"

namespace luna::cuda {
namespace {

constexpr int kSize = ops::kSquareState;
constexpr int kLd = kSize + 1;
constexpr int kStateNumbers = kSize * kLd;
[[maybe_unused]] constexpr int kStateBytes = kStateNumbers * 4;
constexpr int kStages = 3;
constexpr int kMostKnots = 1024;
constexpr int kItems = 16;  // projections of a query and a key

template <int kCount>
struct Shared {
  float states[kStages][kStateNumbers];
  float query[kSize], key[kSize], parts[kCount / kSize][kSize], last[2];
  uint64_t arrived[kStages];
  float boundary[kMostKnots];
};

/// The states' way in and out; thread 0 commands the copy engine.
template <int kCount>
struct Stages {
  Shared<kCount>& shared;

  __device__ void init() {
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x == 0) {
      for (uint64_t& barrier : shared.arrived) {
        hopper::barrier_init(hopper::shared_address(&barrier), 1);
      }
      hopper::barrier_init_fence();
    }
#endif
  }
  /// Number i of the block's states; its stage was put back two states ago.
  __device__ void fetch(int i, const float* from) {
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x > 0) return;
    asm volatile("cp.async.bulk.wait_group.read 1;\n" ::: "memory");
    const uint32_t barrier =
        hopper::shared_address(&shared.arrived[i % kStages]);
    hopper::arrive_expecting(barrier, kStateBytes);
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1], %2, [%3];\n" ::"r"(
            hopper::shared_address(shared.states[i % kStages])),
        "l"(from), "r"(kStateBytes), "r"(barrier)
        : "memory");
#else
    for (int j = threadIdx.x; j < kStateNumbers; j += kCount) {
      shared.states[i % kStages][j] = from[j];
    }
#endif
  }
  /// After a barrier of the block that came after `fetch`.
  __device__ float* wait(int i) {
#if __CUDA_ARCH__ >= 900
    hopper::wait(hopper::shared_address(&shared.arrived[i % kStages]),
                 i / kStages & 1);
#endif
    return shared.states[i % kStages];
  }
  /// A barrier of the block, too. A state that no key entered stays as it was
  /// in memory.
  __device__ void put_back(int i, float* to, bool changed) {
    [[maybe_unused]] const float* from = shared.states[i % kStages];
#if __CUDA_ARCH__ >= 900
    hopper::fence_async();
    __syncthreads();
    if (threadIdx.x > 0) return;
    if (changed) {
      asm volatile(
          "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n" ::"l"(
              to),
          "r"(hopper::shared_address(from)), "r"(kStateBytes)
          : "memory");
    }
    // Of an unchanged state too: `fetch` counts groups.
    asm volatile("cp.async.bulk.commit_group;\n" ::: "memory");
#else
    __syncthreads();
    if (!changed) return;
    for (int j = threadIdx.x; j < kStateNumbers; j += kCount) to[j] = from[j];
#endif
  }
  /// The copy engine has read all; the launch's end waits for its writing.
  __device__ void finish() {
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x == 0) {
      asm volatile("cp.async.bulk.wait_group.read 0;\n" ::: "memory");
    }
#endif
  }
};

/// The number of boundaries < u, by a warp: lists of `stride` numbers, those
/// that end below u, then the one that does not.
__device__ __forceinline__ int count_below(const float* sorted, int knots,
                                           float u) {
  const int lane = threadIdx.x % 32, stride = (knots + 31) / 32;
  const auto below = [&](int i) { return i < knots && sorted[i] < u; };
  const int lists =
      __popc(__ballot_sync(0xffffffffu, below(lane * stride + stride - 1)));
  const bool in = lane < stride && below(lists * stride + lane);
  const int count = lists * stride + __popc(__ballot_sync(0xffffffffu, in));
  return count < knots ? count : knots;
}

template <typename In>
__device__ __forceinline__ In* row_of(const Rows& rows, int batch, int head) {
  return static_cast<In*>(rows.data) + row_at(rows, batch, head, 0);
}
template <typename In>
__device__ __forceinline__ float number_at(const In* x, int i) {
  return static_cast<float>(x[i]);
}

/// Features of the query, and of the key times its weight; each warp has some
/// of the pairs of a projection and a side. `ready` returns when boundaries are
/// in shared memory.
template <typename In, int kCount, typename Ready>
__device__ __forceinline__ void make_features(const Step<float>& p,
                                              const FeatureMap<float>& map,
                                              int batch, int head, float weight,
                                              const Ready& ready,
                                              Shared<kCount>& shared) {
  constexpr int kOwn = kItems * 32 / kCount;
  const int lane = threadIdx.x % 32, first = threadIdx.x / 32 * kOwn;
  const float* weights = map.weight + (map.per_head ? head * 8 * kSize : 0);
  const float* biases = map.bias + (map.per_head ? head * 8 : 0);
  const In* query = row_of<In>(p.query, batch, head);
  const In* key = row_of<In>(p.key, batch, head);
  float u[kOwn];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int m = (first + i) / 2;
    const In* from = (first + i) % 2 == 0 ? query : key;
    const float* w = weights + m * kSize;
    u[i] = fmaf(w[lane], number_at(from, lane),
                w[lane + 32] * number_at(from, lane + 32));
  }
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    u[i] = warp_sum(u[i]) + biases[(first + i) / 2];
  }
  ready();
  // Eight lanes for each pair.
  const int knots = static_cast<int>(map.shape.knots);
  float own = u[0];
  int segment = 0;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int found = count_below(shared.boundary, knots, u[i]);
    if (i == 0 || lane / 8 == i) {
      own = u[i];
      segment = found;
    }
  }
  if (lane / 8 >= kOwn) return;
  const int item = first + lane / 8, c = lane % 8;
  const float* row = map.table + map.shape.rows_at + segment * 16;
  const float value = row[c] * own + row[8 + c];
  const float feature = (map.nonneg && value < 0.f ? 0.f : value) * map.factor;
  if (item % 2 == 0) {
    shared.query[item / 2 * 8 + c] = feature;
  } else {
    shared.key[item / 2 * 8 + c] = feature * weight;
  }
}

template <typename In, bool kMapped, int kCount>
__global__ void __launch_bounds__(kCount)
    square_step_kernel(const __grid_constant__ Step<float> p,
                       const __grid_constant__ FeatureMap<float> map) {
  constexpr int kParts = kCount / kSize;
  extern __shared__ __align__(128) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared<kCount>*>(memory);
  Stages<kCount> stages{shared};
  const int thread = static_cast<int>(threadIdx.x);
  const int column = thread % kSize, part = thread / kSize;
  const int heads = static_cast<int>(p.heads);
  const int count = static_cast<int>(p.batch) * heads;
  const int step = static_cast<int>(gridDim.x);
  const auto state_of = [&](int number) {
    return p.state + static_cast<int64_t>(number) * kStateNumbers;
  };
  stages.init();
  int number = static_cast<int>(blockIdx.x);
  // On its way to the cache while the launch before, which may have written
  // it, ends.
  for (int j = 32 * thread; j < kStateNumbers; j += 32 * kCount) {
    hopper::fetch_ahead(state_of(number) + j);
  }
  __syncthreads();
  wait_for_previous_launch();
  allow_next_launch();
  stages.fetch(0, state_of(number));
  constexpr int kOwn = kMostKnots / kCount;
  float boundary[kOwn];  // on their way while other loads are asked for
  if constexpr (kMapped) {
    const int knots = static_cast<int>(map.shape.knots);
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
      const int at = thread + k * kCount;
      if (at < knots) boundary[k] = map.table[map.shape.boundary_at + at];
    }
    if (count <= step) {
      // One state a block: the rows are asked for before it is known which.
      const float* rows = map.table + map.shape.rows_at;
      for (int i = 32 * thread; i < (knots + 1) * 16; i += 32 * kCount) {
        hopper::fetch_ahead(rows + i);
      }
    }
  }
  int i = 0;
  [[maybe_unused]] const auto ready = [&] {
    if (i > 0) return;
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
      const int at = thread + k * kCount;
      if (at < static_cast<int>(map.shape.knots)) {
        shared.boundary[at] = boundary[k];
      }
    }
    __syncthreads();
  };
  for (; number < count; number += step, ++i) {
    const int batch = number / heads, head = number % heads;
    if (const int next = number + step; next < count) {
      stages.fetch(i + 1, state_of(next));
      if (thread >= 32 && thread < 35) {
        const Rows& rows = thread == 32   ? p.query
                           : thread == 33 ? p.key
                                          : p.value;
        hopper::fetch_ahead(row_of<In>(rows, next / heads, next % heads));
      }
    }
    const float x = number_at(row_of<In>(p.value, batch, head), column);
    const float weight = factor_of(p.weight, batch, head, 0);
    if constexpr (kMapped) {
      make_features<In, kCount>(p, map, batch, head, weight, ready, shared);
    } else if (thread < kSize) {
      shared.query[thread] =
          number_at(row_of<In>(p.query, batch, head), thread);
      shared.key[thread] =
          weight * number_at(row_of<In>(p.key, batch, head), thread);
    }
    __syncthreads();
    float* sums = stages.wait(i);
    float total = 0.f;
#pragma unroll 8
    for (int f = part; f < kSize; f += kParts) {
      const float sum = fmaf(shared.key[f], x, sums[f * kLd + column]);
      sums[f * kLd + column] = sum;
      total = fmaf(shared.query[f], sum, total);
    }
    shared.parts[part][column] = total;
    if (thread < kSize) {
      const float sum = sums[thread * kLd + kSize] + shared.key[thread];
      sums[thread * kLd + kSize] = sum;
      const float den = warp_sum(shared.query[thread] * sum);
      if (thread % 32 == 0) shared.last[thread / 32] = den;
    }
    stages.put_back(i, state_of(number), weight != 0.f);
    if (part > 0) continue;
    total = 0.f;
#pragma unroll
    for (int j = 0; j < kParts; ++j) total += shared.parts[j][column];
    const float scale =
        p.normalize ? 1.f / guarded(shared.last[0] + shared.last[1], p.eps)
                    : 1.f;
    row_of<In>(p.out, batch, head)[column] = static_cast<In>(total * scale);
  }
  stages.finish();
}

template <typename In, bool kMapped>
void launch(const Step<float>& p, const FeatureMap<float>& map,
            cudaStream_t stream) {
  const int processors = multiprocessors();
  const int64_t states = p.batch * p.heads;
  const bool few = states <= processors;
  const int64_t blocks =
      few ? states : std::min<int64_t>(states, 4 * processors);
  const auto kernel = few ? square_step_kernel<In, kMapped, 512>
                          : square_step_kernel<In, kMapped, 256>;
  const size_t bytes = few ? sizeof(Shared<512>) : sizeof(Shared<256>);
  launch_after(
      kernel, static_cast<unsigned>(blocks), few ? 512 : 256, bytes, stream,
      kMapped ? "universal_attention_step" : "linear_attention_step", p, map);
}

}  // namespace

bool advance_square_states(const Step<float>& p, const FeatureMap<float>* map,
                           cudaStream_t stream) {
  const Scalar type = p.query.type;
  if (p.features != kSize || p.width != kSize || p.key.type != type ||
      p.value.type != type || p.out.type != type ||
      (type != Scalar::kBFloat16 && type != Scalar::kFloat) ||
      reinterpret_cast<uintptr_t>(p.state) % 16 != 0 ||
      p.batch * p.heads > 1 << 30) {
    return false;
  }
  const bool narrow = type == Scalar::kBFloat16;
  if (map == nullptr) {
    (narrow ? launch<__nv_bfloat16, false> : launch<float, false>)(p, {},
                                                                   stream);
    return true;
  }
  if (map->projections != ops::kSquareProjections ||
      map->shape.channels != ops::kSquareChannels || map->width != kSize ||
      map->shape.knots > kMostKnots) {
    return false;
  }
  (narrow ? launch<__nv_bfloat16, true> : launch<float, true>)(p, *map, stream);
  return true;
}

}  // namespace luna::cuda
