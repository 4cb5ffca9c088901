#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/rows.h"

namespace luna::cuda {

/// ops/feed_forward.h for rows of 64 numbers and 128 hidden ones; bfloat16
/// where it does not say float, all contiguous, from multiples of 16 bytes.
struct FeedForward {
  static constexpr int kWidth = 64, kHidden = 128;
  static constexpr int kWeight = kWidth * kHidden;
  /// Of the gradients, one after the other: up_weight, down_weight, up_bias,
  /// down_bias.
  static constexpr int kGradients = 2 * kWeight + kHidden + kWidth;

  int64_t rows = 0;
  RowDropoutRule dropout;
  const void* x = nullptr;
  const float *up_weight = nullptr, *up_bias = nullptr;
  const float *down_weight = nullptr, *down_bias = nullptr;
  void* out = nullptr;
  // Backward.
  const void* grad = nullptr;
  void* grad_x = nullptr;
  float* partials = nullptr;   ///< [feed_forward_parts, kGradients]
  float* gradients = nullptr;  ///< [kGradients]
};

int64_t feed_forward_parts(int64_t rows);
void feed_forward(const FeedForward& args, cudaStream_t stream);
void feed_forward_backward(const FeedForward& args, cudaStream_t stream);

}  // namespace luna::cuda
