#pragma once

#include <luna/data/dataset.h>

#include <span>

namespace luna::data {

/// How a picture is moved: mirrored, then shifted.
struct Move {
  bool flip = false;
  int64_t down = 0, right = 0;
};

/// A pure function of (seed, position in the run).
Move draw_move(uint64_t seed, int64_t position);

/// The picture mirrored or not and shifted by up to 4 pixels each way as
/// draw_move says, all planes alike, black where it was shifted away from.
void augment_picture(std::span<const uint8_t> picture, const TaskInfo& info,
                     uint64_t seed, int64_t position, std::span<uint8_t> out);

}  // namespace luna::data
