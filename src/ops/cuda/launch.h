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

/// Of the current device.
inline int device_attribute(cudaDeviceAttr attribute) {
  int device = 0, number = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&number, attribute, device);
  return number;
}
inline int multiprocessors() {
  return device_attribute(cudaDevAttrMultiProcessorCount);
}
/// The most shared memory that a block may ask for, in bytes.
inline int block_memory() {
  return device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
}
/// Newer GPUs run what was compiled for older ones than Hopper, and know
/// nothing of its instructions there.
inline bool is_hopper() {
  return device_attribute(cudaDevAttrComputeCapabilityMajor) == 9;
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

/// A launch whose start may overlap, on a Hopper GPU, the end of the one
/// before; the kernel calls wait_for_previous_launch. The blocks of a cluster,
/// where it has more than one, see each other's shared memory.
template <typename... Parameters, typename... Args>
void launch_clusters_after(void (*kernel)(Parameters...), dim3 blocks,
                           dim3 cluster, int threads, size_t memory,
                           cudaStream_t stream, const char* name,
                           const Args&... args) {
  constexpr size_t kUsual = 40 * 1024;  // 48, less what a kernel names itself
  if (memory > kUsual) {
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         static_cast<int>(memory));
  }
  cudaLaunchAttribute attributes[2] = {};
  unsigned count = 0;
  if (is_hopper()) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster.x * cluster.y * cluster.z > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count].val.clusterDim.x = cluster.x;
    attributes[count].val.clusterDim.y = cluster.y;
    attributes[count++].val.clusterDim.z = cluster.z;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = blocks;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = memory;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = count;
  cudaLaunchKernelEx(&config, kernel, args...);
  check_launch(name);
}
/// The same without clusters.
template <typename... Parameters, typename... Args>
void launch_after(void (*kernel)(Parameters...), dim3 blocks, int threads,
                  size_t memory, cudaStream_t stream, const char* name,
                  const Args&... args) {
  launch_clusters_after(kernel, blocks, dim3(1), threads, memory, stream, name,
                        args...);
}

#endif  // __CUDACC__

}  // namespace luna::cuda
