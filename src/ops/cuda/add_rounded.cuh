#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace luna::cuda {

/// The 32 bits at `at` += x y, rounded, |x y| < 2^21.
__device__ __forceinline__ void add_rounded(uint32_t at, float x, float y) {
  constexpr float kMagic = 12582912.f;  // 1.5 * 2^23: units are its last bit
  const int rounded = __float_as_int(fmaf(x, y, kMagic)) - 0x4b400000;
  asm volatile("red.shared::cta.add.s32 [%0], %1;\n" ::"r"(at), "r"(rounded)
               : "memory");
}

}  // namespace luna::cuda
