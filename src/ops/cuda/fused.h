#pragma once

#include "ops/cuda/features.h"
#include "ops/cuda/rows.h"

// Universal attention in which features never leave the chip: bfloat16 rows
// of 64 numbers, 8 projections by 8 channels.

namespace luna::cuda {

/// Whether the table fits beside the tiles, forward and backward.
bool fused_fits(const TableShape& shape);

/// The table as the kernels keep it in shared memory: made once a call.
int64_t fused_image_bytes(const TableShape& shape);
void fused_image(const FeatureMap<float>& map, void* image,
                 cudaStream_t stream);

/// parts[piece, head] = sum_t w_t phi(k_t) [v_t, last_t]^T    [64, 65]
struct FusedKeys {
  FeatureMap<float> map;
  const void* image;
  Cut pieces;
  int64_t heads;
  Rows key, value;
  Factor<float> weight, last;
  float* parts;
};
void fused_keys(const FusedKeys& args, cudaStream_t stream);

/// out_t = phi(q_t) S / guarded(phi(q_t) z) from states [sequences, heads].
struct FusedQueries {
  FeatureMap<float> map;
  const void* image;
  Cut pieces;
  int64_t heads;
  Rows query, out;
  const float* states;
  float eps;
  float* denominator;  ///< null: not wanted
  int64_t denominator_batch, denominator_head;
};
void fused_queries(const FusedQueries& args, cudaStream_t stream);

/// The backward of either side, from states [sequences, heads]:
///
///   queries  g = r (y S^T - (phi . r y S^T) z), y the output's gradient and
///            r = 1 / guarded(denominator); keeps r, and the denominator's
///            gradient over r, for the sum over queries (fused_keys).
///   keys     g = w (y dS^T + dz), y = v; dv = w phi dS.
///
/// Then dx = du W with du = g dphi/du, and each block's sums for the
/// parameters, to parts [fused_blocks, feature_sums_size].
struct FusedBackward {
  bool keys;
  FeatureMap<float> map;
  const void* image;
  Cut pieces;  ///< of at most kFusedPiece tokens
  int64_t heads;
  Rows x, y, grad_x, grad_y;  ///< grad_y: keys alone
  const float* states;
  float eps;
  Factor<float> row;   ///< denominators, or weights
  float *inverse, *d;  ///< queries alone: [batch, heads, length]
  int64_t inverse_batch, inverse_head;
  float* parts;
  int64_t blocks;
};
constexpr int64_t kFusedPiece = 2048;
/// Blocks that share the work: one for each multiprocessor.
int64_t fused_blocks();
void fused_backward(const FusedBackward& args, cudaStream_t stream);

}  // namespace luna::cuda
