#pragma once

#include <cstdint>
#include <functional>

namespace luna::data {

/// Called now and then while a set is generated, by the thread that asked for
/// the set. May throw to stop.
using GenerateProgress = std::function<void(int64_t done, int64_t total)>;

}  // namespace luna::data
