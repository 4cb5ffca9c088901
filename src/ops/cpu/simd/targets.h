#pragma once

// luna compiles each kernel three times: AVX-512, AVX2 and the baseline.
// Include before <hwy/highway.h>. The low byte: AVX-512 variants newer than
// HWY_AVX3, which the kernels would not use.
#define HWY_DISABLED_TARGETS (0xFF | HWY_SSSE3 | HWY_SSE4)
