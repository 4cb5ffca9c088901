#include "ops/device_graph.h"

#include <c10/util/Exception.h>

#include <map>

namespace luna::ops {
namespace {

// A function's, not a global: other libraries register while this one loads.
std::map<c10::DeviceType, CaptureGraph>& captures() {
  static std::map<c10::DeviceType, CaptureGraph> all;
  return all;
}

}  // namespace

void register_graphs(c10::DeviceType type, CaptureGraph capture) {
  if (capture == nullptr) {
    captures().erase(type);
  } else {
    captures()[type] = capture;
  }
}

bool has_graphs(const c10::Device& device) {
  return captures().contains(device.type());
}

std::unique_ptr<DeviceGraph> capture_graph(const c10::Device& device,
                                           const std::function<void()>& work) {
  const auto found = captures().find(device.type());
  TORCH_CHECK(found != captures().end(),
              "capture_graph: expected a device with graphs (cuda), got ",
              device);
  return found->second(device, work);
}

}  // namespace luna::ops
