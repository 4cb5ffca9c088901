#pragma once

#include "ops/cuda/fused_pieces.h"
#include "ops/cuda/fused_table.cuh"

namespace luna::cuda::fused {

/// What fused_pieces leaves in memory: a header, the table as it stands in
/// shared memory, and each segment's first piece.
struct PieceImage {
  struct Header {
    float grid[2];  ///< low, scale
    int count;      ///< of pieces
    /// Those without a beginning and without an end: their u have no middle.
    int ends[2];
    int unused[3];
  };
  __host__ __device__ static int bytes(const TableShape& s, int rows) {
    return static_cast<int>(sizeof(Header)) + Table::bytes(rows, s.cells) +
           (static_cast<int>(s.knots) + 2) * 2;
  }
  __device__ PieceImage(unsigned char* image, const TableShape& s, int rows)
      : header(reinterpret_cast<Header*>(image)),
        table(image + sizeof(Header)),
        first(
            reinterpret_cast<uint16_t*>(table + Table::bytes(rows, s.cells))) {}
  /// The table to shared memory, by the whole block; a barrier comes after.
  template <int kThreads>
  __device__ void load(const TableShape& s, int rows, unsigned char* to) const {
    const int words = Table::bytes(rows, s.cells) / 16;
    constexpr int kAhead = 8;
    for (int base = 0; base < words; base += kAhead * kThreads) {
      uint4 word[kAhead];
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        const int i = base + j * kThreads + threadIdx.x;
        if (i < words) word[j] = reinterpret_cast<const uint4*>(table)[i];
      }
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        const int i = base + j * kThreads + threadIdx.x;
        if (i < words) reinterpret_cast<uint4*>(to)[i] = word[j];
      }
    }
  }

  Header* header;
  unsigned char* table;
  uint16_t* first;  ///< [segments + 1]
};

}  // namespace luna::cuda::fused
