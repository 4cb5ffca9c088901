#pragma once

#include <cstdint>
#include <vector>

namespace luna::data {

/// A square picture of bytes, row by row.
struct SquareImage {
  int64_t size = 0;
  std::vector<uint8_t> pixels{};

  explicit SquareImage(int64_t size_) : size(size_), pixels(size_ * size_) {}
  uint8_t& at(int64_t y, int64_t x) { return pixels[y * size + x]; }
  uint8_t at(int64_t y, int64_t x) const { return pixels[y * size + x]; }
};

/// The picture scaled down to size x size by Lanczos' filter of three lobes:
/// first along rows, then along columns, rounded to bytes after each, as
/// Pillow does.
SquareImage shrink_lanczos(const SquareImage& image, int64_t size);

}  // namespace luna::data
