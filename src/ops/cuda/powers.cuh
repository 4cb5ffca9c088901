#pragma once

namespace luna::cuda {

constexpr double kLog2E = 1.44269504088896340736;

__device__ __forceinline__ float power(float x) { return exp2f(x); }
__device__ __forceinline__ double power(double x) { return exp2(x); }

}  // namespace luna::cuda
