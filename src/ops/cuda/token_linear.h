#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace luna::cuda {

/// out = x W^T + b, bfloat16, contiguous: x [rows, in], weight [outs, in],
/// bias [outs], out [rows, outs]; limits in ops/token_linear.h.
struct TokenLinear {
  const void *x, *weight, *bias;
  void* out;
  int rows, in, outs;
  bool relu;
};
void token_linear(const TokenLinear& args, cudaStream_t stream);

}  // namespace luna::cuda
