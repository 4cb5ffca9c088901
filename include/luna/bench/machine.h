#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace luna::bench {

/// What a figure depends on beside the code: where it was measured.
struct Machine {
  std::string cpu;  ///< the processor's name, as the system gives it
  int logical_cores = 0;
  int threads = 0;          ///< that LibTorch and luna use
  std::string isa;          ///< instruction set of luna's kernels
  std::int64_t memory = 0;  ///< bytes this process may use
  std::vector<std::string> cuda_devices;
  std::string luna_version, torch_version;
};

Machine this_machine();

}  // namespace luna::bench
