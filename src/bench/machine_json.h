#pragma once

#include <nlohmann/json.hpp>

#include "luna/bench/machine.h"

namespace luna::bench {

inline nlohmann::ordered_json machine_json(const Machine& m) {
  return {{"cpu", m.cpu},
          {"logical_cores", m.logical_cores},
          {"threads", m.threads},
          {"isa", m.isa},
          {"memory_bytes", m.memory},
          {"cuda_devices", m.cuda_devices}};
}

}  // namespace luna::bench
