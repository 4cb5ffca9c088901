#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "ops/cuda/features.h"
#include "ops/cuda/rows.h"

// Universal attention in which features never leave the chip: bfloat16 rows
// of 32, 64 or 128 numbers, 8 projections by 8 channels or (not of 128 numbers)
// 16 by 8, which are two halves of 64 features each; on Hopper GPUs.

namespace luna::cuda {

/// Whether this device has the kernels for keys and values of this width, and
/// the table fits beside the tiles.
bool fused_fits(const FeatureMap<float>& map);

/// Rows [batch, heads, length, width] as the copy engine reads them: strides
/// are multiples of 8 numbers and not 0, where they are more than one. Tiles
/// are 64 rows of `tile_width` numbers, 32 or 64 (0: of the width, up to 64);
/// what they have beyond the rows' width are zeros.
CUtensorMap fused_rows(const Rows& rows, int64_t batch, int64_t heads,
                       int64_t length, int64_t width = 64,
                       int64_t tile_width = 0);

/// One side's tokens in tiles of 64, sequence by sequence, head by head. They
/// are dealt to `workers` (warpgroups) in equal runs.
struct FusedTiles {
  Cut tiles;
  int heads;
  int workers;
};

/// Numbers of a part of a half's sums [64, width + 1] over a run of tiles: two
/// parts for each worker, the first for a (sequence, head) that began before
/// its run, the second for one that ends after it. What lies within a run goes
/// to `states` at once.
constexpr int64_t fused_part(int64_t width) { return (width / 2 + 2) * 128; }
constexpr int64_t kFusedPart = fused_part(64);

/// sum_t w_t phi(k_t) [v_t, 1]^T
struct FusedKeys {
  CUtensorMap key, value;
  FeatureMap<float> map;
  FusedTiles tiles;
  Factor<float> weight;
  float *parts, *states;
};
int64_t fused_keys_workers(const FeatureMap<float>& map);
void fused_keys(const FusedKeys& args, cudaStream_t stream);

/// states [sequences, heads, halves, 64, width + 1]: their parts, and `start`
/// where not null.
struct FusedAdd {
  FusedTiles tiles;
  int width, halves;
  const float *parts, *start;
  float* states;
};
void fused_add(const FusedAdd& args, cudaStream_t stream);

/// out_t = phi(q_t) S / guarded(phi(q_t) z)
struct FusedQueries {
  CUtensorMap query;
  Rows out;
  FeatureMap<float> map;
  FusedTiles tiles;
  const float* states;
  float eps;
  float* denominator;  ///< null: not wanted
  int64_t denominator_batch, denominator_head;
};
int64_t fused_queries_workers(const FeatureMap<float>& map);
void fused_queries(const FusedQueries& args, cudaStream_t stream);

/// The backward of either side:
///
///   queries  g = r (y S^T + d z), y the output's gradient, r = 1 / guarded
///            denominator, d = -r phi . y S^T; sums r phi [y, d]^T like keys'.
///   keys     g = w (y S^T + z), y = v, S and z the sums' gradients;
///            dv = w phi S; the weight's gradient phi . (y S^T + z).
///
/// Then dx = du W with du = g dphi/du, and each block's sums for the
/// parameters, to sums [fused_blocks, feature_sums_size]; where heads have
/// projections of their own, these sums' dW and db are left out, and added to
/// head_sums [workers, heads, fused_head_sums]: dW [M, width], db [4, M].
struct FusedBackward {
  CUtensorMap x, y;
  Rows grad_x, grad_y;  ///< grad_y: keys alone
  FeatureMap<float> map;
  FusedTiles tiles;
  const float* states;
  float eps;
  Factor<float> row;       ///< denominators, or weights
  float *parts, *results;  ///< queries alone: as FusedKeys' parts and states
  float* grad_weight;      ///< keys alone; null: not wanted
  int64_t grad_weight_batch, grad_weight_head;
  float *sums, *head_sums;
  unsigned char* pieces;  ///< the side's image, of `rows` rows (fused_pieces.h)
  int rows;
};
constexpr int64_t fused_head_sums(int64_t width, int64_t projections) {
  return projections * (width + 4);
}
int64_t fused_blocks();
int64_t fused_backward_workers(const FeatureMap<float>& map);
int fused_backward_pieces(const FeatureMap<float>& map);
void fused_backward(bool keys, const FusedBackward& args, cudaStream_t stream);

}  // namespace luna::cuda
