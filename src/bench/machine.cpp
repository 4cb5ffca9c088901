#include "luna/bench/machine.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <thread>

#include "luna/version.h"
#include "ops/cpu/simd/isa.h"
#include "ops/device_name.h"

namespace luna::bench {
namespace {

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(':');
    if (line.starts_with("model name") && colon != std::string::npos) {
      return line.substr(line.find_first_not_of(' ', colon + 1));
    }
  }
  return "unknown processor";
}

std::int64_t usable_memory() {
  std::int64_t bytes = static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) *
                       sysconf(_SC_PAGE_SIZE);
  // A container may hold less than its machine does; "max" reads as nothing.
  std::ifstream limit("/sys/fs/cgroup/memory.max");
  if (std::int64_t allowed = 0; limit >> allowed) {
    bytes = std::min(bytes, allowed);
  }
  return bytes;
}

std::vector<std::string> cuda_devices() {
  std::vector<std::string> names;
  const int count = at::detail::getCUDAHooks().deviceCount();
  for (int i = 0; i < count; ++i) {
    const auto index = static_cast<c10::DeviceIndex>(i);
    names.push_back(ops::device_name(c10::Device(c10::kCUDA, index)));
  }
  return names;
}

}  // namespace

Machine this_machine() {
  Machine machine;
  machine.cpu = cpu_name();
  machine.logical_cores = static_cast<int>(std::thread::hardware_concurrency());
  machine.threads = at::get_num_threads();
  machine.isa = cpu::isa_name();
  machine.memory = usable_memory();
  machine.cuda_devices = cuda_devices();
  machine.luna_version = version();
  machine.torch_version = torch_version();
  return machine;
}

}  // namespace luna::bench
