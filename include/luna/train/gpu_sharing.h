#pragma once

#include <string>

namespace luna::train {

/// Lets processes compute on one GPU at the same time, by NVIDIA's
/// Multi-Process Service: without it they take turns, so that small runs side
/// by side are no faster than one after the other.
///
/// Starts a service of its own, in a folder under the system's temporary one,
/// and points the environment of this process, and so of those that it starts
/// from now on, at it (CUDA_MPS_PIPE_DIRECTORY). Leaves alone a service that
/// the environment names already. Ends what it started.
class GpuSharing {
 public:
  /// Throws if there is no nvidia-cuda-mps-control, or it fails.
  GpuSharing();
  ~GpuSharing();
  GpuSharing(const GpuSharing&) = delete;
  GpuSharing& operator=(const GpuSharing&) = delete;

  /// Where the service is reached and writes its logs.
  const std::string& folder() const { return folder_; }

 private:
  std::string folder_{};
  bool started_ = false;
};

}  // namespace luna::train
