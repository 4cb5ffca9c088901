#pragma once

#include "ops/cuda/features.h"

// The feature map's kernels of tiles in shared memory, for float32, bfloat16
// and float16 rows; features.h's own serve float64 and what is too large here.

namespace luna::cuda {

/// How a block's shared memory is cut; places are in floats. A tile is 16
/// tokens for each of `token_warps` warps; the others of 8 share its
/// projections.
struct FeatureTiles {
  int token_warps, projection_warps;
  int columns;  ///< of rows: the width, rounded up
  int rows;     ///< projections, rounded up
  int biases, weights, x, boundary, cells;
  int table;  ///< forward: psi's rows
  // Backward: psi by channel, gradients and sums.
  int lines, index, du, grad_weights, low, high;
  int channels;                             ///< whose sums a block has, of all
  int copies;                               ///< of each sum, of different lanes
  bool table_near, lines_near, index_near;  ///< in shared memory
  int floats;                               ///< in all

  int tokens() const { return 16 * token_warps; }
  int stride() const { return columns + 8; }
};

/// False where no cut fits.
bool cut_feature_tiles(const FeatureMap<float>& map, bool backward,
                       FeatureTiles& tiles);

void feature_tiles_forward(const FeatureMap<float>& map,
                           const FeatureRows& rows, const Rows& phi,
                           cudaStream_t stream);

/// As features_backward, but sums by Knots::kOwn; `scratch` are
/// feature_tiles_scratch floats.
void feature_tiles_backward(const FeatureMap<float>& map,
                            const FeatureRows& rows, const Rows& grad_phi,
                            const Rows& grad_x, float* partials, int64_t parts,
                            float* scratch, cudaStream_t stream);
int64_t feature_tiles_scratch(const TableShape& shape);

/// Blocks along a head; depends on shapes alone.
int64_t feature_tile_parts(const FeatureRows& rows, const FeatureTiles& tiles);

}  // namespace luna::cuda
