#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "ops/cuda/rows.h"
#include "ops/dropout.h"

// Rows read two columns at a time, and dropout on them. No float64 here.

namespace luna::cuda {

__device__ __forceinline__ float2 load_pair(const void* data, int64_t pair,
                                            Scalar type) {
  switch (type) {
    case Scalar::kBFloat16:
      return __bfloat1622float2(static_cast<const __nv_bfloat162*>(data)[pair]);
    case Scalar::kHalf:
      return __half22float2(static_cast<const __half2*>(data)[pair]);
    default:
      return static_cast<const float2*>(data)[pair];
  }
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
  __device__ RowDropout(const int64_t* seed, double p, ops::DropoutMap map)
      : on(seed != nullptr),
        threshold(ops::dropout_threshold(p)),
        scale(static_cast<float>(1 / (1 - p))) {
    if (on) {
      key = ops::dropout_head_key(seed[0], seed[1], map, 0, 0);
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
