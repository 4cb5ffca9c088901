#pragma once

#include <cuda_runtime_api.h>

#include "ops/cuda/rows.h"

namespace luna::cuda {

/// ops/embed.h, all contiguous.
struct Embed {
  int64_t batch = 0, length = 0, width = 0, vocabulary = 0;
  const int64_t* ids = nullptr;
  const bool* mask = nullptr;  ///< null: all are real
  RowDropoutRule dropout;
  // Forward.
  const float *tokens = nullptr, *positions = nullptr;
  float* out = nullptr;
  // Backward.
  const float* grad = nullptr;
  float* grad_positions = nullptr;  ///< rows beyond the length are not touched
  float* partials = nullptr;        ///< [embed_blocks, vocabulary, width]
};

int64_t embed_blocks(const Embed& args);
void embed_forward(const Embed& args, cudaStream_t stream);
void embed_backward(const Embed& args, cudaStream_t stream);

}  // namespace luna::cuda
