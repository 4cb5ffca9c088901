#pragma once

#include "ops/cuda/fused_pieces.h"
#include "ops/cuda/fused_table.cuh"

namespace luna::cuda::fused {

/// What fused_pieces leaves in memory: a header, and what goes to shared
/// memory: the table and each segment's first piece.
struct PieceImage {
  struct Header {
    float grid[2];  ///< low, scale
    /// Those without a beginning and without an end: their u have no middle.
    int ends[2];
    int unused[4];
  };
  /// Room for the segments' first pieces and the end of the last, to a multiple
  /// of 16 bytes.
  __host__ __device__ static int firsts(const TableShape& s) {
    return aligned((static_cast<int>(s.knots) + 2) * 2) / 2;
  }
  /// In shared memory.
  __host__ __device__ static int bytes(const TableShape& s, int rows) {
    return Table::bytes(rows, s.cells) + 2 * firsts(s);
  }
  __device__ static uint16_t* first_in(unsigned char* memory,
                                       const TableShape& s, int rows) {
    return reinterpret_cast<uint16_t*>(memory + Table::bytes(rows, s.cells));
  }
  __device__ explicit PieceImage(unsigned char* image)
      : header(reinterpret_cast<Header*>(image)),
        table(image + sizeof(Header)) {}
  /// By the whole block; a barrier comes after.
  template <int kThreads>
  __device__ void load(const TableShape& s, int rows, unsigned char* to) const {
    const int words = bytes(s, rows) / 16;
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
};

}  // namespace luna::cuda::fused
