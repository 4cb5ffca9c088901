#pragma once

namespace luna::cuda {

constexpr double kLog2E = 1.44269504088896340736;

__device__ __forceinline__ float power(float x) { return exp2f(x); }
__device__ __forceinline__ double power(double x) { return exp2(x); }

/// Below every score.
template <typename T>
__device__ __forceinline__ T lowest() {
  return T(-1e38);
}
/// 1 / sum of powers; 0 where there was nothing to add.
template <typename T>
__device__ __forceinline__ T inverse_of(T sum) {
  return sum == T(0) ? T(0) : T(1) / (sum > T(1e-37) ? sum : T(1e-37));
}

}  // namespace luna::cuda
