#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace luna::cuda {

/// Linear layers from rows of 64 numbers to 64, 128 or 192, side by side;
/// bfloat16 where it does not say float, all contiguous, from multiples of 16
/// bytes.
struct NarrowLinear {
  static constexpr int kWidth = 64, kMostBlocks = 3;
  static constexpr int numbers(int blocks) {
    return blocks * kWidth * (kWidth + 1);
  }

  int64_t rows = 0;
  int blocks = 0;                         ///< of 64 numbers of the output
  const float* weight[kMostBlocks] = {};  ///< [64, 64] of each
  const float* bias[kMostBlocks] = {};
  const void* x = nullptr;  ///< [rows, 64]
  void* out = nullptr;      ///< [rows, blocks * 64]
  // Backward.
  const void* grad = nullptr;  ///< [rows, blocks * 64]
  void* grad_x = nullptr;      ///< null: not wanted
  float* partials = nullptr;   ///< [narrow_linear_parts, numbers(blocks)]
  float* gradients = nullptr;  ///< [numbers(blocks)]: weights, then biases
};

int64_t narrow_linear_parts(int64_t rows, int blocks);
void narrow_linear(const NarrowLinear& args, cudaStream_t stream);
void narrow_linear_backward(const NarrowLinear& args, cudaStream_t stream);

}  // namespace luna::cuda
