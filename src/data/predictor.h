#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace luna::data {

// Pictures compress better as what a predictor gets wrong. The predictor is
// the median edge detector of JPEG-LS: of the pixels to the left a, above b
// and above left c it takes a + b - c, kept between a and b. Each picture
// (each plane of one in colour) stands alone; differences are modulo 256 and
// folded (0, -1, 1, -2, ...), so that small ones have small numbers.

/// As many bytes as there are pixels.
std::vector<uint8_t> to_residuals(std::span<const uint8_t> pictures,
                                  int64_t height, int64_t width);

/// Undoes to_residuals, in place.
void from_residuals(std::span<uint8_t> residuals, int64_t height,
                    int64_t width);

}  // namespace luna::data
