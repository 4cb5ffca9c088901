#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace luna::cuda {

/// Tensors in chunks of so many numbers, one tensor after the other.
struct FewTensors {
  static constexpr int kMost = 128, kChunk = 1024;
  int count = 0, chunks = 0;
  int numbers[kMost] = {}, first_chunk[kMost] = {};
  void add(int64_t size) {
    numbers[count] = static_cast<int>(size);
    first_chunk[count++] = chunks;
    chunks += static_cast<int>((size + kChunk - 1) / kChunk);
  }
};

struct NormOfFew {
  FewTensors tensors;
  const float* x[FewTensors::kMost] = {};
  float* parts = nullptr;  ///< [chunks]
  float* norm = nullptr;
};
void norm_of_few(const NormOfFew& args, cudaStream_t stream);

struct AdamOfFew {
  FewTensors tensors;
  float *parameter[FewTensors::kMost] = {}, *first[FewTensors::kMost] = {},
        *second[FewTensors::kMost] = {};
  const float* gradient[FewTensors::kMost] = {};
  const float *updates = nullptr, *lr = nullptr, *scale = nullptr,
              *skip = nullptr;
  double beta1 = 0, beta2 = 0;
  float eps = 0, weight_decay = 0;
  bool decoupled = false;
};
void adam_of_few(const AdamOfFew& args, cudaStream_t stream);

}  // namespace luna::cuda
