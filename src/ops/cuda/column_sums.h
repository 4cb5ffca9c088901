#pragma once

#include <cuda_runtime_api.h>

#include "ops/cuda/rows.h"

// Sums over rows, always in the same order.

namespace luna::cuda {

/// x [rows, width], width even and at most 512, to sums [column_blocks, width].
int64_t column_blocks(int64_t rows);
void column_sums(const void* x, Scalar type, int64_t rows, int64_t width,
                 float* partials, cudaStream_t stream);

/// total [width] of parts [count, width].
void sum_parts(const float* parts, int64_t count, int64_t width, float* total,
               cudaStream_t stream);

}  // namespace luna::cuda
