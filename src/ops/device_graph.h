#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>

// Work on a device, recorded once and launched as a whole. libluna_cuda.so has
// the code; this is what the rest sees of it.

namespace luna::ops {

class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  /// On the current stream. Random numbers go on from the default generator's
  /// seed and offset, as if the work were done again.
  virtual void replay() = 0;
};

/// Whether work on this device can be recorded.
bool has_graphs(const c10::Device& device);

/// Records what `work` launches, without doing it. It must have run before, so
/// that nothing is set up on the way, and leave nothing behind in tensors made
/// meanwhile: graphs share their memory. Throws c10::Error where there are no
/// graphs, or `work` waits for the device; then the device is as before.
std::unique_ptr<DeviceGraph> capture_graph(const c10::Device& device,
                                           const std::function<void()>& work);

/// For the library that has them. nullptr: there are none any more.
using CaptureGraph = std::unique_ptr<DeviceGraph> (*)(
    const c10::Device&, const std::function<void()>&);
void register_graphs(c10::DeviceType type, CaptureGraph capture);

}  // namespace luna::ops
