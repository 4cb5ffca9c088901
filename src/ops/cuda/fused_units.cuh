#pragma once

#include "ops/cuda/fused_numbers.cuh"

// Fixed-point numbers of the fused backwards' sums, causal or not:
// 32-bit integers in shared memory, in units of a power of two.

namespace luna::cuda::fused {

constexpr int kUnitBits = 14;
constexpr int kSumRow = kChannels + 1;  // odd, against bank conflicts

/// A power of two, by its exponent: kNone is 0, kInfinite is no number.
constexpr int kNone = 40, kInfinite = 255;

/// Of the least power of two >= x (bits of a float >= 0).
__device__ __forceinline__ int exponent_above(int bits) {
  const int e = (bits + 0x7fffff) >> 23;
  return e > kNone ? e : kNone;
}
/// What a number is multiplied by to be in units, kUnitBits below a power.
__device__ __forceinline__ float to_units(int exponent) {
  return exponent == kInfinite
             ? 0.f
             : __int_as_float((2 * 127 + kUnitBits - exponent) << 23);
}
__device__ __forceinline__ float of_unit(int exponent) {
  return __int_as_float((exponent - kUnitBits) << 23);
}
/// The 32 bits at `at` += x y, rounded, |x y| < 2^21.
__device__ __forceinline__ void add_rounded(uint32_t at, float x, float y) {
  constexpr float kMagic = 12582912.f;  // 1.5 * 2^23: units are its last bit
  const int rounded = __float_as_int(fmaf(x, y, kMagic)) - 0x4b400000;
  asm volatile("red.shared::cta.add.s32 [%0], %1;\n" ::"r"(at), "r"(rounded)
               : "memory");
}

}  // namespace luna::cuda::fused
