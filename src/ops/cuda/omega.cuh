#pragma once

#include "ops/cuda/powers.cuh"

namespace luna::cuda {

__device__ __forceinline__ float log_1p(float x) { return log1pf(x); }
__device__ __forceinline__ double log_1p(double x) { return log1p(x); }

/// Nested causal attention's activation, and its slope: softplus to the base 2,
/// log2(1 + 2^x), or elu + 1.
template <typename T>
__device__ T omega(bool elu, T x, T& slope) {
  const bool positive = x > T(0);
  if (elu) {
    const T e = power((positive ? T(0) : x) * static_cast<T>(kLog2E));
    slope = positive ? T(1) : e;
    return positive ? x + T(1) : e;
  }
  // log2(1 + 2^x) = max(x, 0) + log2(1 + 2^-|x|): nothing can overflow.
  const T z = power(positive ? -x : x);
  slope = (positive ? T(1) : z) / (T(1) + z);
  return log_1p(z) * static_cast<T>(kLog2E) + (positive ? x : T(0));
}

}  // namespace luna::cuda
