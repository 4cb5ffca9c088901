#include "ops/device_graph.h"

#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>

#include <exception>
#include <map>

namespace luna::cuda {
namespace {

using c10::cuda::CUDAStream;

/// Graphs are replayed one after the other on one stream and keep nothing: one
/// pool of memory serves all that live at a time. A pool that no graph holds
/// any more cannot be used again.
struct Pool {
  at::cuda::MempoolId_t id = at::cuda::graph_pool_handle();
};
std::shared_ptr<Pool> pool_of(c10::DeviceIndex device) {
  static std::map<c10::DeviceIndex, std::weak_ptr<Pool>> pools;
  std::shared_ptr<Pool> pool = pools[device].lock();
  if (!pool) pools[device] = pool = std::make_shared<Pool>();
  return pool;
}

/// The same stream for every capture: cuBLAS keeps a workspace for each.
CUDAStream stream_of(c10::DeviceIndex device) {
  static std::map<c10::DeviceIndex, CUDAStream> streams;
  const auto found = streams.find(device);
  if (found != streams.end()) return found->second;
  return streams.emplace(device, c10::cuda::getStreamFromPool(false, device))
      .first->second;
}

class CudaGraph : public ops::DeviceGraph {
 public:
  CudaGraph(c10::DeviceIndex device, const std::function<void()>& work)
      : pool_(pool_of(device)) {
    const c10::cuda::CUDAGuard on_device(device);
    const CUDAStream stream = stream_of(device);
    c10::cuda::device_synchronize();
    const c10::cuda::CUDAStreamGuard on_stream(stream);
    try {
      graph_.capture_begin(pool_->id, cudaStreamCaptureModeThreadLocal);
      work();
      graph_.capture_end();
    } catch (...) {
      const std::exception_ptr why = std::current_exception();
      abandon(stream, pool_->id);
      std::rethrow_exception(why);
    }
  }

  void replay() override { graph_.replay(); }

 private:
  /// What capture_end would have done, had the recording been sound.
  static void abandon(const CUDAStream& stream,
                      const at::cuda::MempoolId_t& pool) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaStreamIsCapturing(stream, &status);
    if (status != cudaStreamCaptureStatusNone) {
      cudaGraph_t broken = nullptr;
      cudaStreamEndCapture(stream, &broken);
      if (broken != nullptr) cudaGraphDestroy(broken);
    }
    cudaGetLastError();
    try {
      c10::cuda::CUDACachingAllocator::endAllocateToPool(stream.device_index(),
                                                         pool);
    } catch (const c10::Error&) {
      // Nothing was allocated yet, or capture_end had come that far.
    }
    // The generator still believes that it is recorded: give it a new state.
    at::Generator generator =
        at::cuda::detail::getDefaultCUDAGenerator(stream.device_index());
    const at::Generator fresh =
        at::cuda::detail::createCUDAGenerator(stream.device_index());
    generator.graphsafe_set_state(fresh.graphsafe_get_state());
  }

  std::shared_ptr<Pool> pool_;
  at::cuda::CUDAGraph graph_;
};

std::unique_ptr<ops::DeviceGraph> capture(const c10::Device& device,
                                          const std::function<void()>& work) {
  const c10::DeviceIndex index =
      device.has_index() ? device.index() : c10::cuda::current_device();
  return std::make_unique<CudaGraph>(index, work);
}

[[maybe_unused]] const bool kRegistered = [] {
  ops::register_graphs(c10::kCUDA, capture);
  return true;
}();

}  // namespace
}  // namespace luna::cuda
