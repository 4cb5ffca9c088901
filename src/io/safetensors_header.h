#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "luna/io/safetensors.h"

namespace luna::io {

/// The most bytes a header may have.
constexpr uint64_t kMaxHeader = 100'000'000;
constexpr size_t kHeaderStart = 8;  ///< after the header's size

struct SafetensorsHeader {
  std::vector<TensorEntry> entries{};
  std::vector<uint32_t> by_name{};
  std::map<std::string, std::string> metadata{};
};

/// Reads and checks the header of a whole file. `path` is for messages.
SafetensorsHeader read_header(std::span<const std::byte> file,
                              const std::string& path);

}  // namespace luna::io
