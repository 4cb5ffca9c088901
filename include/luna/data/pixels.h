#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace luna::data {

/// Rows of pixels, one after the other, `channels` bytes each.
struct Pixels {
  int64_t height = 0, width = 0, channels = 0;
  std::vector<uint8_t> bytes{};
};

/// A picture that lies plane after plane, as a data set has it.
Pixels from_planes(std::span<const uint8_t> planes, int64_t height,
                   int64_t width, int64_t channels);

/// A PNG or JPEG file in RGB, as Pillow's convert("RGB") gives it: alpha is
/// dropped, grey is repeated. An error names the file.
Pixels read_picture(const std::string& path);

/// The filters' numbers are Pillow's: what `resample` is in a
/// preprocessor_config.json.
enum class Filter { kLanczos = 1, kBilinear = 2, kBicubic = 3 };

/// The picture of another size, antialiased, to the very bytes that Pillow's
/// resize gives.
Pixels resize(const Pixels& picture, int64_t height, int64_t width,
              Filter filter);

/// `height` x `width` pixels out of the middle; black where there are none.
Pixels center_crop(const Pixels& picture, int64_t height, int64_t width);

}  // namespace luna::data
