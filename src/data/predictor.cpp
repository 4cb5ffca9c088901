#include "data/predictor.h"

#include <algorithm>

namespace luna::data {
namespace {

constexpr int kBeforeFirst = 128;

/// `pixel` points into a picture of known pixels to the left and above.
int predict(const uint8_t* pixel, int64_t y, int64_t x, int64_t width) {
  if (y == 0) return x == 0 ? kBeforeFirst : pixel[-1];
  const int above = pixel[-width];
  if (x == 0) return above;
  const int left = pixel[-1], corner = pixel[-width - 1];
  const auto [low, high] = std::minmax(left, above);
  return std::clamp(left + above - corner, low, high);
}

uint8_t fold(uint8_t difference) {
  const auto d = static_cast<int8_t>(difference);
  return static_cast<uint8_t>(d < 0 ? -2 * d - 1 : 2 * d);
}

uint8_t unfold(uint8_t folded) {
  return static_cast<uint8_t>(folded % 2 == 1 ? -(folded / 2) - 1 : folded / 2);
}

/// Calls visit(first pixel of a row, y) for all rows of all pictures.
template <class Visit>
void for_each_row(size_t size, int64_t height, int64_t width, Visit visit) {
  const int64_t rows = static_cast<int64_t>(size) / width;
  for (int64_t row = 0; row < rows; ++row) visit(row * width, row % height);
}

}  // namespace

std::vector<uint8_t> to_residuals(std::span<const uint8_t> pictures,
                                  int64_t height, int64_t width) {
  std::vector<uint8_t> out(pictures.size());
  for_each_row(pictures.size(), height, width, [&](int64_t start, int64_t y) {
    const uint8_t* const row = pictures.data() + start;
    for (int64_t x = 0; x < width; ++x) {
      out[start + x] =
          fold(static_cast<uint8_t>(row[x] - predict(row + x, y, x, width)));
    }
  });
  return out;
}

void from_residuals(std::span<uint8_t> residuals, int64_t height,
                    int64_t width) {
  for_each_row(residuals.size(), height, width, [&](int64_t start, int64_t y) {
    uint8_t* const row = residuals.data() + start;
    for (int64_t x = 0; x < width; ++x) {
      row[x] =
          static_cast<uint8_t>(unfold(row[x]) + predict(row + x, y, x, width));
    }
  });
}

}  // namespace luna::data
