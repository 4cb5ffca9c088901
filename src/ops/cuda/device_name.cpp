#include "ops/device_name.h"

#include <ATen/cuda/CUDAContext.h>

namespace luna::cuda {
namespace {

[[maybe_unused]] const bool kRegistered = [] {
  ops::register_device_names(c10::kCUDA, [](const c10::Device& device) {
    return std::string(at::cuda::getDeviceProperties(device.index())->name);
  });
  return true;
}();

}  // namespace
}  // namespace luna::cuda
