#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace luna::data {

/// Rows of pixels, one after the other, `channels` bytes each.
struct Pixels {
  int64_t height = 0, width = 0, channels = 0;
  std::vector<uint8_t> bytes{};
};

/// The very bytes of a PNG with 8 bits a channel and no palette. An error
/// names the file.
Pixels read_png(const std::string& path);

/// The bytes of a PNG file: grey (1 channel) or RGB (3).
std::string encode_png(const Pixels& pixels);

}  // namespace luna::data
