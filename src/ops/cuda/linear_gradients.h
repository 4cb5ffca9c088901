#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

// Gradients of a narrow linear layer's weight and bias in one reading of its
// input and of its output's gradient.

namespace luna::cuda {

struct LinearGradients {
  const void* up;  ///< [rows, out] bfloat16: the output's gradient
  const void* x;   ///< [rows, in] bfloat16
  int64_t rows, out, in;
  int64_t pieces;   ///< of the rows
  float* partials;  ///< [pieces, out * in + out]: up^T x, then up's sums
};

/// Rows' pieces that fill a GPU; 0 where the layer is not narrow enough, or
/// not of multiples of 8, and a matrix product is the better way.
int64_t linear_gradient_pieces(int64_t rows, int64_t out, int64_t in);

void linear_gradients(const LinearGradients& args, cudaStream_t stream);

}  // namespace luna::cuda
