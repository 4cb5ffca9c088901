#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "ops/cuda/rows.h"
#include "ops/dropout.h"

// Rows read two columns at a time, and dropout on them. No float64 here.

namespace luna::cuda {

/// A pair as it lies in memory. A conversion waits for its load: who reads
/// many loads them all first.
__device__ __forceinline__ uint2 load_raw(const void* data, int64_t pair,
                                          Scalar type) {
  if (type == Scalar::kFloat) return static_cast<const uint2*>(data)[pair];
  return {static_cast<const uint32_t*>(data)[pair], 0};
}

__device__ __forceinline__ float2 to_pair(uint2 raw, Scalar type) {
  switch (type) {
    case Scalar::kBFloat16:
      return __bfloat1622float2(reinterpret_cast<__nv_bfloat162&>(raw.x));
    case Scalar::kHalf:
      return __half22float2(reinterpret_cast<__half2&>(raw.x));
    default:
      return {__uint_as_float(raw.x), __uint_as_float(raw.y)};
  }
}

__device__ __forceinline__ float2 load_pair(const void* data, int64_t pair,
                                            Scalar type) {
  return to_pair(load_raw(data, pair, type), type);
}

__device__ __forceinline__ void store_pair(void* data, int64_t pair,
                                           Scalar type, float2 x) {
  switch (type) {
    case Scalar::kBFloat16:
      static_cast<__nv_bfloat162*>(data)[pair] = __float22bfloat162_rn(x);
      break;
    case Scalar::kHalf:
      static_cast<__half2*>(data)[pair] = __float22half2_rn(x);
      break;
    default:
      static_cast<float2*>(data)[pair] = x;
  }
}

/// The factor of each entry of a row: 0, or 1 / (1 - p).
struct RowDropout {
  __device__ RowDropout(const RowDropoutRule& rule, ops::DropoutMap map)
      : on(rule.seed != nullptr), threshold(rule.threshold), scale(rule.scale) {
    if (on) {
      key = ops::dropout_head_key(rule.seed[0], rule.seed[1], map, 0, 0);
    }
  }
  __device__ float2 factors(uint64_t row_key, int pair) const {
    if (!on) return {1.0f, 1.0f};
    return {
        ops::dropout_bits(row_key, 2 * pair) >= threshold ? scale : 0.0f,
        ops::dropout_bits(row_key, 2 * pair + 1) >= threshold ? scale : 0.0f};
  }
  __device__ uint64_t row_key(int64_t row) const {
    return on ? ops::dropout_token_key(key, row) : 0;
  }
  bool on;
  uint32_t threshold;
  float scale;
  uint64_t key = 0;
};

}  // namespace luna::cuda
