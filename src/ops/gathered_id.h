#pragma once

#include <cstdint>

namespace luna::ops {

/// gather_sequences' and gather_packed's arguments as the kernels of all
/// devices read them.
struct Gather {
  const uint8_t* ids = nullptr;
  const int64_t* offsets = nullptr;
  const int64_t* sequences = nullptr;
  const int64_t* moves = nullptr;  ///< null: pictures stay where they are
  int64_t batch = 0, length = 0, max_length = 0, cls = -1, pad = 0;
  int64_t height = 0, width = 0;
  int64_t* rows = nullptr;
  int64_t* lengths = nullptr;
  int64_t* starts = nullptr;  ///< packed: [batch + 2], and one row of `length`
};

/// Ids of row `row`, [CLS] not counted.
constexpr int64_t gathered_ids(const Gather& g, int64_t row) {
  const int64_t s = g.sequences[row];
  const int64_t count = g.offsets[s + 1] - g.offsets[s];
  return g.max_length > 0 && g.max_length < count ? g.max_length : count;
}

constexpr int64_t gathered_length(const Gather& g, int64_t row) {
  return gathered_ids(g, row) + (g.cls >= 0 ? 1 : 0);
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

/// starts[1 ... batch + 1] hold the lengths of the sequences and anything; they
/// become where each sequence and the filler start and all end, within the row
/// even if it is too short.
constexpr void add_up_starts(const Gather& g, int64_t* starts) {
  starts[0] = 0;
  for (int64_t i = 0; i < g.batch; ++i) {
    const int64_t end = starts[i] + starts[i + 1];
    starts[i + 1] = end < g.length ? end : g.length;
  }
  starts[g.batch + 1] = g.length;
}

constexpr int64_t packed_id(const Gather& g, const int64_t* starts,
                            int64_t token) {
  // The last sequence that starts at or before the token.
  int64_t low = 0, high = g.batch;
  while (low < high) {
    const int64_t middle = (low + high + 1) / 2;
    if (starts[middle] <= token) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low == g.batch ? g.pad : gathered_id(g, low, token - starts[low]);
}

}  // namespace luna::ops
