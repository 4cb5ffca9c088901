#pragma once

#include "ops/cuda/features.h"
#include "ops/cuda/rows.h"

// Universal attention in which features never leave the chip: bfloat16 rows
// of 64 numbers, 8 projections by 8 channels.

namespace luna::cuda {

/// Whether the table fits beside the tiles.
bool fused_fits(const TableShape& shape);

/// parts[piece, head] = sum_t w_t phi(k_t) [v_t, 1]^T    [64, 65]
struct FusedKeys {
  FeatureMap<float> map;
  Cut pieces;
  int64_t heads;
  Rows key, value;
  Factor<float> weight;
  float* parts;
};
void fused_keys(const FusedKeys& args, cudaStream_t stream);

/// out_t = phi(q_t) S / guarded(phi(q_t) z) from states [sequences, heads].
struct FusedQueries {
  FeatureMap<float> map;
  Cut pieces;
  int64_t heads;
  Rows query, out;
  const float* states;
  float eps;
  float* denominator;  ///< null: not wanted
  int64_t denominator_batch, denominator_head;
};
void fused_queries(const FusedQueries& args, cudaStream_t stream);

}  // namespace luna::cuda
