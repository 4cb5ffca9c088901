#pragma once

#include <cuda_runtime_api.h>

#include "ops/cuda/rows.h"

namespace luna::cuda {

/// ops/embed.h, all contiguous, from multiples of 16 bytes.
struct Embed {
  int64_t count = 0;  ///< of tokens
  /// Sequences and places in each: count = batch * length. Packed: the filler
  /// is not one, and there are as many places as rows of positions.
  int64_t batch = 0, length = 0;
  int64_t width = 0, vocabulary = 0;
  const int64_t* ids = nullptr;
  const bool* mask = nullptr;       ///< null: all are real
  const int64_t* starts = nullptr;  ///< [batch + 2]; null: not packed
  RowDropoutRule dropout;
  // Forward.
  const float *tokens = nullptr, *positions = nullptr;
  float* out = nullptr;
  // Backward.
  const float* grad = nullptr;
  float* grad_positions = nullptr;  ///< rows beyond the length are not touched
  float* grad_tokens = nullptr;     ///< [embed_part_numbers]
  float* partials = nullptr;        ///< [embed_parts, embed_part_numbers]
};

/// vocabulary * width, and what is missing to a multiple of 4.
constexpr int64_t embed_part_numbers(const Embed& e) {
  return (e.vocabulary * e.width + 3) / 4 * 4;
}
int64_t embed_parts(const Embed& args);
void embed_forward(const Embed& args, cudaStream_t stream);
void embed_backward(const Embed& args, cudaStream_t stream);

}  // namespace luna::cuda
