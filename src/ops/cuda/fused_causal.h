#pragma once

#include "ops/cuda/fused.h"

// Causal universal attention by the fused kernels: the same tensors as in
// fused.h. Tiles are dealt to `tiles.workers` runs; a warpgroup walks along
// one run with the sums over the tokens behind it in registers. What stands
// before each run comes from a pass that adds up the runs' ends and a scan.

namespace luna::cuda {

/// parts[run]: sum_t w_t phi(k_t) [v_t, 1]^T over the last tiles of a run, for
/// the (sequence, head) that goes on in the next run.
struct CausalKeySums {
  CUtensorMap key, value;
  FeatureMap<float> map;
  FusedTiles tiles;
  Factor<float> weight;
  Rows features;  ///< w phi(k) of all tokens; null: not wanted
  float* parts;   ///< [workers, kFusedPart]
};
void causal_key_sums(const CausalKeySums& args, cudaStream_t stream);

/// parts[run]: sum_t f_t [y_t, d_t]^T over the first tiles of a run, for the
/// (sequence, head) that goes on in the run before.
struct CausalQuerySums {
  CUtensorMap features, y;
  FusedTiles tiles;
  Factor<float> d;
  float* parts;
};
void causal_query_sums(const CausalQuerySums& args, cudaStream_t stream);

/// parts[run] becomes what stands behind the run's last tile (before its first
/// one, with `backwards`), `start` included. A sequence without tokens has its
/// start for its result.
struct CausalScan {
  FusedTiles tiles;
  bool backwards;
  float* parts;
  const float* start;  ///< [sequences, heads, 64, 65]; null: 0
  float* results;      ///< null: not wanted
};
void causal_scan(const CausalScan& args, cudaStream_t stream);

/// out_t = phi(q_t) S_t / guarded(phi(q_t) z_t)
struct CausalForward {
  CUtensorMap query, key, value;
  Rows out;
  FeatureMap<float> map;
  FusedTiles tiles;
  Factor<float> weight;
  const float* parts;  ///< scanned, one for each run
  const float* start;
  float* results;  ///< the last states
  float eps;
  float* denominator;  ///< null: not wanted
  int64_t denominator_batch, denominator_head;
};
int64_t causal_forward_workers();
void causal_forward(const CausalForward& args, cudaStream_t stream);

/// The backward of either side.
///
///   queries  g_t = r_t (y_t S_t^T + d_t z_t), S and z over the keys up to t,
///            d_t = -r_t phi(q_t) . y_t S_t^T
///   keys     g_j = w_j (v_j R_j^T + e_j), [R, e] the sums of r phi(q) [y, d]^T
///            over the queries from j on; dv_j = w_j phi(k_j) R_j; the weight's
///            gradient is phi(k_j) . (v_j R_j^T + e_j).
///
/// The other side's features are read from memory, in their places as
/// fused_causal.cuh has them: w phi(k) or r phi(q). The rest is as in
/// FusedBackward.
struct CausalBackward {
  CUtensorMap x, features, value, y;
  Rows grad_x;
  Rows grad_value;    ///< keys
  Rows features_out;  ///< queries: r phi(q)
  FeatureMap<float> map;
  FusedTiles tiles;
  Factor<float> weight;      ///< keys
  const float* denominator;  ///< queries: [batch, heads, length]
  float* d;                  ///< the same: queries write it, keys read it
  int64_t row_batch, row_head;
  float eps;
  /// Queries: [sequences, heads]: the first key with a weight; those before it
  /// have no gradient. Null: all have one.
  const int64_t* live;
  const float* parts;  ///< scanned
  const float* start;
  float* results;      ///< keys: R of whole sequences; null: not wanted
  float* grad_weight;  ///< keys; null: not wanted
  float* sums;         ///< [fused_blocks, feature_sums_size]
  unsigned char* pieces;
  int rows;
};
int64_t causal_backward_workers();
int causal_backward_pieces(const TableShape& shape);
void causal_backward(bool keys, const CausalBackward& args,
                     cudaStream_t stream);

bool causal_fits(const TableShape& shape);

}  // namespace luna::cuda
