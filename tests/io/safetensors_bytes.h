#pragma once

#include <cstdint>
#include <string>

namespace luna::io {

/// The eight bytes that hold a header's size.
inline std::string size_bytes(uint64_t size) {
  std::string bytes(8, '\0');
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(size >> 8 * i);
  return bytes;
}

/// A file of this header and `data` bytes 1.
inline std::string file_of(const std::string& header, size_t data = 0) {
  return size_bytes(header.size()) + header + std::string(data, '\1');
}

}  // namespace luna::io
