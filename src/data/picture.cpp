#include <c10/util/Exception.h>
#include <luna/data/pixels.h>
#include <luna/io/text_file.h>

#include <algorithm>
#include <string_view>

#include "data/jpeg_file.h"
#include "data/png_file.h"

namespace luna::data {

Pixels from_planes(std::span<const uint8_t> planes, int64_t height,
                   int64_t width, int64_t channels) {
  const int64_t plane = height * width;
  TORCH_CHECK_VALUE(plane > 0 && std::ssize(planes) == channels * plane,
                    "from_planes: expected a picture of ", channels, " x ",
                    height, " x ", width, " values, got ", planes.size());
  Pixels picture{height, width, channels, {}};
  picture.bytes.reserve(planes.size());
  for (int64_t i = 0; i < plane; ++i) {
    for (int64_t c = 0; c < channels; ++c) {
      picture.bytes.push_back(planes[c * plane + i]);
    }
  }
  return picture;
}

Pixels read_picture(const std::string& path) {
  const std::string bytes = io::read_text(path);
  const std::string_view start(bytes);
  if (start.starts_with("\x89PNG\r\n\x1a\n")) {
    return decode_png_rgb(bytes, path);
  }
  TORCH_CHECK_VALUE(start.starts_with("\xff\xd8\xff"), path,
                    ": expected a PNG or JPEG file, got something else (",
                    bytes.size(), " bytes)");
  return decode_jpeg_rgb(bytes, path);
}

Pixels center_crop(const Pixels& picture, int64_t height, int64_t width) {
  Pixels result{height, width, picture.channels, {}};
  result.bytes.resize(height * width * picture.channels);
  // Halves are rounded down where pixels are cut, up where they are added.
  const auto shift = [](int64_t from, int64_t to) {
    return from >= to ? (from - to) / 2 : -((to - from + 1) / 2);
  };
  const int64_t top = shift(picture.height, height);
  const int64_t left = shift(picture.width, width);
  const int64_t first = std::max<int64_t>(0, -left);
  const int64_t last = std::min(width, picture.width - left);
  for (int64_t y = 0; y < height; ++y) {
    if (y + top < 0 || y + top >= picture.height || first >= last) continue;
    const auto* from =
        picture.bytes.data() +
        ((y + top) * picture.width + first + left) * picture.channels;
    std::copy_n(from, (last - first) * picture.channels,
                result.bytes.data() + (y * width + first) * picture.channels);
  }
  return result;
}

}  // namespace luna::data
