#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace luna::cuda {

/// ops/mlp_head.h, contiguous; at most 512 rows of 256 numbers, 512 hidden
/// ones and 64 classes.
struct MlpHead {
  static constexpr int kMostRows = 512, kMostWidth = 256, kMostHidden = 512,
                       kMostClasses = 64;

  int rows = 0, width = 0, hidden = 0, classes = 0;
  const float *x = nullptr, *hidden_weight = nullptr, *hidden_bias = nullptr,
              *out_weight = nullptr;
  float *active = nullptr, *logits = nullptr;
  // Backward.
  const float* grad = nullptr;
  float *grad_x = nullptr, *grad_hidden_weight = nullptr,
        *grad_hidden_bias = nullptr, *grad_out_weight = nullptr;
};

void mlp_head(const MlpHead& args, cudaStream_t stream);
void mlp_head_backward(const MlpHead& args, cudaStream_t stream);

}  // namespace luna::cuda
