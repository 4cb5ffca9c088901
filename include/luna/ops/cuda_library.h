#pragma once

#include <string>

namespace luna::ops {

/// libluna_cuda.so, which holds the ops' CUDA kernels. It is loaded with
/// libluna where the driver shows a device; LUNA_CUDA=off leaves it alone.
struct CudaLibrary {
  bool loaded = false;
  std::string why_not;  ///< empty where it is loaded
};

const CudaLibrary& cuda_library();

}  // namespace luna::ops
