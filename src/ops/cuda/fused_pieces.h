#pragma once

#include "ops/cuda/fused.h"

namespace luna::cuda {

/// psi's table for one side of the backward: its segments are cut into pieces,
/// so that all u of a piece may count as its middle and one sum per piece and
/// channel is enough. Where to cut follows from the density of u, which comes
/// from a sample of the rows.
struct FusedPieces {
  struct Side {
    Rows x;
    int64_t batch, heads, length;
    unsigned char* image;  ///< [fused_pieces_bytes], aligned to 16 bytes
  };
  Side sides[2];
  FeatureMap<float> map;
  int rows;    ///< at most so many pieces
  bool joint;  ///< one image for both sides, the first one's
};
int64_t fused_pieces_bytes(const TableShape& shape, int rows);
void fused_pieces(const FusedPieces& args, cudaStream_t stream);

/// So many that a table is cut well enough; what backwards need room for.
inline int fused_least_pieces(const TableShape& shape) {
  const auto segments = static_cast<int>(shape.knots) + 1;
  return segments + segments / 3 + 2;
}

}  // namespace luna::cuda
