#pragma once

#include <luna/data/dataset.h>

#include <span>

namespace luna::data {

/// The picture mirrored or not and shifted by up to 4 pixels each way, black
/// where it was shifted away from. A pure function of (seed, position).
void augment_picture(std::span<const uint8_t> picture, const TaskInfo& info,
                     uint64_t seed, int64_t position, std::span<uint8_t> out);

}  // namespace luna::data
