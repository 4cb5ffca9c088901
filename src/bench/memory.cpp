#include "luna/bench/memory.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <malloc.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <string>

namespace luna::bench {
namespace {

std::atomic<std::int64_t> current_bytes{0};
std::atomic<std::int64_t> peak_bytes{0};

void count(std::int64_t bytes) {
  const std::int64_t now = current_bytes += bytes;
  std::int64_t seen = peak_bytes.load();
  while (now > seen && !peak_bytes.compare_exchange_weak(seen, now)) {
  }
}

// The block's size comes from the heap itself, so that data and context stay
// one pointer, which LibTorch's raw_allocate asks of a CPU allocator.
void release(void* data) {
  if (data == nullptr) return;
  count(-static_cast<std::int64_t>(malloc_usable_size(data)));
  c10::free_cpu(data);
}

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    void* data = c10::alloc_cpu(bytes);
    if (data != nullptr) {
      count(static_cast<std::int64_t>(malloc_usable_size(data)));
    }
    return {data, data, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
};

void install_once() {
  static const bool installed = [] {
    static CountingAllocator allocator;
    c10::SetCPUAllocator(&allocator, /*priority=*/255);
    return true;
  }();
  (void)installed;
}

/// "VmRSS: 1234 kB" of /proc/self/status, in bytes.
std::int64_t process_status(const std::string& field) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(field + ":")) {
      return std::stoll(line.substr(field.size() + 1)) * 1024;
    }
  }
  return -1;
}

}  // namespace

MemoryMeter::MemoryMeter() {
  install_once();
  start_ = current_bytes;
  peak_bytes = start_;
}

std::int64_t MemoryMeter::peak() const { return peak_bytes - start_; }

ResidentMeter::ResidentMeter() {
  malloc_trim(0);
  std::ofstream("/proc/self/clear_refs") << "5";  // VmHWM back to VmRSS
  start_ = process_status("VmRSS");
}

std::int64_t ResidentMeter::peak() const {
  const std::int64_t high = process_status("VmHWM");
  return start_ < 0 || high < 0 ? -1 : high - start_;
}

std::int64_t peak_resident_bytes() { return process_status("VmHWM"); }

}  // namespace luna::bench
