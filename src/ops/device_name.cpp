#include "ops/device_name.h"

#include <map>

namespace luna::ops {
namespace {

// A function's, not a global: other libraries register while this one loads.
std::map<c10::DeviceType, DeviceName>& names() {
  static std::map<c10::DeviceType, DeviceName> all;
  return all;
}

}  // namespace

void register_device_names(c10::DeviceType type, DeviceName name) {
  names()[type] = name;
}

std::string device_name(const c10::Device& device) {
  const auto found = names().find(device.type());
  return found == names().end() ? device.str() : found->second(device);
}

}  // namespace luna::ops
