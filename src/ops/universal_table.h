#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

// The layout of universal_table's result: one flat tensor, float32 or float64,
// whose size depends on the parameters' shapes alone.
//
//   header      low, scale        the grid of cells over the middle knots
//   boundary    [knots + 4]       sorted; the last four are +inf
//   cell_begin  [cells + 1]       bits of integers, not numbers
//   rank        [knots]           unit -> its place in `boundary`; integers
//   rows        [knots + 1][2 L]  a segment's slopes, then its intercepts
//
// Segment of u = the number of boundaries < u. A unit with weight w > 0 is
// active for u > t = -bias/w and one with w < 0 for u < t; the latter's
// boundary is the number just below t. So at u = t neither is active, which is
// ReLU's gradient at 0 in PyTorch, to the last bit.
//
// Finding it: cell(u) = clamp((u - low) * scale) is monotone in u, so all
// boundaries of lower cells are < u and all of higher cells are not. The four
// boundaries from the cell's first on are compared at once; only where all
// four are < u does a search go on. Knots have heavy tails (a quotient of
// weights), hence the grid covers the middle ones and its end cells hold the
// rest.

namespace luna::ops {

struct UniversalTableLayout {
  int64_t trunks;    ///< rows of hidden_weight: L, or 1 where shared
  int64_t hidden;    ///< h
  int64_t channels;  ///< L

  int64_t knots() const { return trunks * hidden; }
  int64_t segments() const { return knots() + 1; }
  int64_t cells() const {
    const uint64_t wanted = std::bit_ceil(uint64_t(4 * knots() + 1));
    return std::clamp<int64_t>(static_cast<int64_t>(wanted), 64, 8192);
  }
  int64_t row_size() const { return 2 * channels; }

  static constexpr int64_t kHeader = 2;
  static constexpr int64_t kProbe = 4;  ///< boundaries compared at once
  int64_t boundary_at() const { return kHeader; }
  int64_t cell_begin_at() const { return boundary_at() + knots() + kProbe; }
  int64_t rank_at() const { return cell_begin_at() + cells() + 1; }
  int64_t rows_at() const { return (rank_at() + knots() + 15) / 16 * 16; }
  int64_t size() const { return rows_at() + segments() * row_size(); }
};

}  // namespace luna::ops
