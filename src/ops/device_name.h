#pragma once

#include <c10/core/Device.h>

#include <string>

// What a device is called. As with graphs, libluna_cuda.so has the code.

namespace luna::ops {

/// "NVIDIA H200"; "cuda:0" where no library knows more.
std::string device_name(const c10::Device& device);

/// For the library that knows.
using DeviceName = std::string (*)(const c10::Device&);
void register_device_names(c10::DeviceType type, DeviceName name);

}  // namespace luna::ops
