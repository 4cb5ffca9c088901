#include "data/augment.h"

#include <algorithm>

#include "data/random.h"

namespace luna::data {
namespace {

constexpr int64_t kShift = 4;
/// Keeps these draws apart from the epochs of a data order of the same seed.
constexpr uint64_t kStreams = uint64_t{1} << 63;

}  // namespace

Move draw_move(uint64_t seed, int64_t position) {
  Random random(seed, kStreams + static_cast<uint64_t>(position));
  Move move;
  move.flip = random.below(2) == 1;
  move.down = random.between(-kShift, kShift);
  move.right = random.between(-kShift, kShift);
  return move;
}

void augment_picture(std::span<const uint8_t> picture, const TaskInfo& info,
                     uint64_t seed, int64_t position, std::span<uint8_t> out) {
  const auto [flip, down, right] = draw_move(seed, position);
  const int64_t height = info.height, width = info.width;
  std::fill(out.begin(), out.end(), uint8_t{0});
  for (int64_t plane = 0; plane < picture_size(info); plane += height * width) {
    for (int64_t y = std::max<int64_t>(0, down);
         y < std::min(height, height + down); ++y) {
      const uint8_t* const from = picture.data() + plane + (y - down) * width;
      uint8_t* const to = out.data() + plane + y * width;
      for (int64_t x = std::max<int64_t>(0, right);
           x < std::min(width, width + right); ++x) {
        const int64_t source = x - right;
        to[x] = from[flip ? width - 1 - source : source];
      }
    }
  }
}

}  // namespace luna::data
