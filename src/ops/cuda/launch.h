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

#ifdef __CUDACC__

/// Until the launch before this one is done and its stores are seen; for
/// kernels that launch_after starts.
__device__ __forceinline__ void wait_for_previous_launch() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}
__device__ __forceinline__ void allow_next_launch() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\n");
#endif
}

/// A launch whose start may overlap the end of the one before; the blocks of a
/// cluster, where one has more than one, see each other's shared memory.
template <typename... Parameters, typename... Args>
void launch_clusters_after(void (*kernel)(Parameters...), dim3 blocks,
                           dim3 cluster, int threads, size_t memory,
                           cudaStream_t stream, const char* name,
                           const Args&... args) {
  if (memory > 0) {
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         static_cast<int>(memory));
  }
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = cluster.x;
  attributes[1].val.clusterDim.y = cluster.y;
  attributes[1].val.clusterDim.z = cluster.z;
  cudaLaunchConfig_t config = {};
  config.gridDim = blocks;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = memory;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = cluster.x * cluster.y * cluster.z > 1 ? 2 : 1;
  cudaLaunchKernelEx(&config, kernel, args...);
  check_launch(name);
}
template <typename... Parameters, typename... Args>
void launch_after(void (*kernel)(Parameters...), dim3 blocks, int threads,
                  size_t memory, cudaStream_t stream, const char* name,
                  const Args&... args) {
  launch_clusters_after(kernel, blocks, dim3(1), threads, memory, stream, name,
                        args...);
}

#endif  // __CUDACC__

}  // namespace luna::cuda
