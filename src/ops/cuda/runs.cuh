#pragma once

#include "ops/cuda/pairs.cuh"

// Runs of 2 or 8 neighbouring columns of a row in a thread's registers. Those
// of 8 start at multiples of 16 bytes.

namespace luna::cuda {

/// A run of columns as it lies in memory. A conversion waits for its load: who
/// reads many loads them all first.
template <int kRun>
struct RawRun {
  uint32_t word[kRun] = {};
  __device__ __forceinline__ void load(const void* data, int64_t run,
                                       Scalar type) {
    if constexpr (kRun == 2) {
      const uint2 raw = load_raw(data, run, type);
      word[0] = raw.x;
      word[1] = raw.y;
    } else {
      const auto* from = static_cast<const uint4*>(data);
      if (type == Scalar::kFloat) {
        put(0, from[2 * run]);
        put(4, from[2 * run + 1]);
      } else {
        put(0, from[run]);
      }
    }
  }
  __device__ __forceinline__ void put(int at, uint4 four) {
    word[at] = four.x;
    word[at + 1] = four.y;
    word[at + 2] = four.z;
    word[at + 3] = four.w;
  }
};

template <int kRun>
struct Run {
  float x[kRun] = {};
  __device__ __forceinline__ void set(const RawRun<kRun>& raw, Scalar type) {
    if (type == Scalar::kFloat) {
#pragma unroll
      for (int i = 0; i < kRun; ++i) x[i] = __uint_as_float(raw.word[i]);
      return;
    }
#pragma unroll
    for (int i = 0; i < kRun / 2; ++i) {
      const float2 pair = to_pair({raw.word[i], 0}, type);
      x[2 * i] = pair.x;
      x[2 * i + 1] = pair.y;
    }
  }
  __device__ __forceinline__ void load(const void* data, int64_t run,
                                       Scalar type = Scalar::kFloat) {
    RawRun<kRun> raw;
    raw.load(data, run, type);
    set(raw, type);
  }
  __device__ __forceinline__ void store(void* data, int64_t run,
                                        Scalar type) const {
    if constexpr (kRun == 2) {
      store_pair(data, run, type, {x[0], x[1]});
    } else if (type == Scalar::kFloat) {
      auto* to = static_cast<float4*>(data) + 2 * run;
      to[0] = {x[0], x[1], x[2], x[3]};
      to[1] = {x[4], x[5], x[6], x[7]};
    } else {
      uint32_t word[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        store_pair(word, i, type, {x[2 * i], x[2 * i + 1]});
      }
      static_cast<uint4*>(data)[run] = {word[0], word[1], word[2], word[3]};
    }
  }
  __device__ __forceinline__ void drop(const RowDropout& dropout, uint64_t key,
                                       int run) {
    if (!dropout.on) return;
#pragma unroll
    for (int i = 0; i < kRun; i += 2) {
      const float2 keep = dropout.factors(key, (run * kRun + i) / 2);
      x[i] *= keep.x;
      x[i + 1] *= keep.y;
    }
  }
};

}  // namespace luna::cuda
