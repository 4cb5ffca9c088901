#pragma once

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

namespace luna::cuda {

/// Throws where the launch just before failed.
inline void check_launch(const char* kernel) {
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) {
    throw std::runtime_error(std::string(kernel) + ": expected a launch, got " +
                             cudaGetErrorString(error));
  }
}

}  // namespace luna::cuda
