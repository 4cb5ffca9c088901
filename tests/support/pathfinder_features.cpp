#include "support/pathfinder_features.h"

#include <algorithm>

namespace luna::testing {

namespace {

constexpr int64_t kSize = 32;

/// Sizes of the groups of pixels above 48 that touch, diagonals counted.
std::vector<int64_t> pieces(std::span<const uint8_t> pixels) {
  std::vector<bool> open(pixels.size());
  for (size_t i = 0; i < pixels.size(); ++i) open[i] = pixels[i] > 48;
  std::vector<int64_t> sizes;
  for (int64_t start = 0; start < kSize * kSize; ++start) {
    if (!open[start]) continue;
    open[start] = false;
    std::vector<int64_t> reached{start};
    for (size_t next = 0; next < reached.size(); ++next) {
      const int64_t y = reached[next] / kSize, x = reached[next] % kSize;
      for (int64_t v = std::max<int64_t>(y - 1, 0);
           v <= std::min(y + 1, kSize - 1); ++v) {
        for (int64_t u = std::max<int64_t>(x - 1, 0);
             u <= std::min(x + 1, kSize - 1); ++u) {
          if (!open[v * kSize + u]) continue;
          open[v * kSize + u] = false;
          reached.push_back(v * kSize + u);
        }
      }
    }
    sizes.push_back(static_cast<int64_t>(reached.size()));
  }
  return sizes;
}

}  // namespace

std::vector<double> pathfinder_features(std::span<const uint8_t> pixels) {
  std::array<int64_t, kPathfinderFeatures.size()> f{};
  for (int64_t y = 0; y < kSize; ++y) {
    for (int64_t x = 0; x < kSize; ++x) {
      const int64_t value = pixels[y * kSize + x];
      f[0] += value;
      f[1] += value * value;
      ++f[value == 0 ? 2 : 3 + value / 32];
      f[11] += value * y;
      f[12] += value * x;
      f[13] += value * y * y;
      f[14] += value * x * x;
      f[15] += value > 0 && std::min({y, x, kSize - 1 - y, kSize - 1 - x}) < 3;
    }
  }
  const std::vector<int64_t> sizes = pieces(pixels);
  f[16] = static_cast<int64_t>(sizes.size());
  f[17] = sizes.empty() ? 0 : *std::max_element(sizes.begin(), sizes.end());
  return {f.begin(), f.end()};
}

}  // namespace luna::testing
