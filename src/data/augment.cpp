#include "data/augment.h"

#include <algorithm>

#include "data/counted.h"

namespace luna::data {
namespace {

constexpr int64_t kShift = 4;
/// Keeps these draws apart from the epochs of a data order of the same seed.
constexpr uint64_t kStream = 0x6175676d656e74;  // "augment"

}  // namespace

void augment_picture(std::span<const uint8_t> picture, const TaskInfo& info,
                     uint64_t seed, int64_t position, std::span<uint8_t> out) {
  const auto draw = [&](uint64_t n, uint64_t which) {
    return static_cast<int64_t>(
        below(n, counted_bits(seed, kStream + which, position)));
  };
  const bool flip = draw(2, 0) == 1;
  const int64_t down = draw(2 * kShift + 1, 1) - kShift;
  const int64_t right = draw(2 * kShift + 1, 2) - kShift;
  const int64_t height = info.height, width = info.width;
  std::fill(out.begin(), out.end(), uint8_t{0});
  for (int64_t y = std::max<int64_t>(0, down);
       y < std::min(height, height + down); ++y) {
    const uint8_t* const from = picture.data() + (y - down) * width;
    uint8_t* const to = out.data() + y * width;
    for (int64_t x = std::max<int64_t>(0, right);
         x < std::min(width, width + right); ++x) {
      const int64_t source = x - right;
      to[x] = from[flip ? width - 1 - source : source];
    }
  }
}

}  // namespace luna::data
