#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace luna::testing {

/// What is compared of a picture of 32 x 32 pixels; all are whole numbers.
inline constexpr std::array kPathfinderFeatures = {
    "sum",    "squares", "zeros",   "1-31",    "32-63",   "64-95",
    "96-127", "128-159", "160-191", "192-223", "224-255", "sum_y",
    "sum_x",  "sum_yy",  "sum_xx",  "edge",    "pieces",  "largest_piece"};

/// sum_y ... sum_xx: moments of the pixel values around the upper left corner;
/// edge: lit pixels among the outer three rows and columns; pieces: groups of
/// neighbouring pixels above 48; largest_piece: the pixels of the largest.
std::vector<double> pathfinder_features(std::span<const uint8_t> pixels);

}  // namespace luna::testing
