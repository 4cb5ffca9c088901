#pragma once

#include <cstdint>

namespace luna::ops {

/// gather_sequences' arguments as the kernels of all devices read them.
struct Gather {
  const uint8_t* ids = nullptr;
  const int64_t* offsets = nullptr;
  const int64_t* sequences = nullptr;
  const int64_t* moves = nullptr;  ///< null: pictures stay where they are
  int64_t batch = 0, length = 0, max_length = 0, cls = -1, pad = 0;
  int64_t height = 0, width = 0;
  int64_t* rows = nullptr;
  int64_t* lengths = nullptr;
};

/// Ids of row `row`, [CLS] not counted.
constexpr int64_t gathered_ids(const Gather& g, int64_t row) {
  const int64_t s = g.sequences[row];
  const int64_t count = g.offsets[s + 1] - g.offsets[s];
  return g.max_length > 0 && g.max_length < count ? g.max_length : count;
}

/// Where pixel i of a moved picture, plane after plane, comes from; -1: it is
/// black.
constexpr int64_t moved_pixel(const Gather& g, int64_t row, int64_t i) {
  const int64_t* const move = g.moves + 3 * row;
  const int64_t in_plane = i % (g.height * g.width);
  const int64_t y = in_plane / g.width - move[1];
  const int64_t x = in_plane % g.width - move[2];
  if (y < 0 || y >= g.height || x < 0 || x >= g.width) return -1;
  return i - in_plane + y * g.width + (move[0] != 0 ? g.width - 1 - x : x);
}

constexpr int64_t gathered_id(const Gather& g, int64_t row, int64_t column) {
  const int64_t specials = g.cls >= 0 ? 1 : 0;
  if (column < specials) return g.cls;
  int64_t i = column - specials;
  if (i >= gathered_ids(g, row)) return g.pad;
  if (g.moves != nullptr) i = moved_pixel(g, row, i);
  return i < 0 ? 0 : g.ids[g.offsets[g.sequences[row]] + i];
}

}  // namespace luna::ops
