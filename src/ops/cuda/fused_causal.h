#pragma once

#include "ops/cuda/fused.h"

// Causal universal attention by the fused kernels: the same tensors as in
// fused.h. Tiles are dealt to `tiles.workers` runs; a warpgroup walks along
// one run with the sums over the tokens behind it in registers. What stands
// before each run comes from a pass that adds up the runs' ends and a scan.

namespace luna::cuda {

/// parts[run][i]: the sums over the last tiles of a run, if the (sequence,
/// head) they belong to goes on in the next run; with `backwards` over the
/// first ones, if it goes on in the run before.
struct CausalSums {
  /// keys: sum_t w_t phi(k_t) [v_t, 1]^T
  /// queries: sum_t r_t phi(q_t) [y_t, d_t]^T, r = 1 / guarded denominator
  CUtensorMap x, y;
  FeatureMap<float> map;
  FusedTiles tiles;
  bool backwards;
  int split;            ///< so many warpgroups share a run
  Factor<float> row;    ///< weights; queries: denominators
  const float *last;    ///< queries: d, with the denominators' strides
  float eps;            ///< queries
  const int64_t *live;  ///< queries: see CausalBackward
  float *parts;         ///< [workers, split, kFusedPart]
};
void causal_sums(bool queries, const CausalSums &args, cudaStream_t stream);

/// parts[run][0] becomes what stands behind the run's last tile (before its
/// first one, with `backwards`), `start` included. A sequence without tokens
/// has its start for its result.
struct CausalScan {
  FusedTiles tiles;
  bool backwards;
  int split;
  float *parts;
  const float *start;  ///< [sequences, heads, 64, 65]; null: 0
  float *results;      ///< null: not wanted
};
void causal_scan(const CausalScan &args, cudaStream_t stream);

/// out_t = phi(q_t) S_t / guarded(phi(q_t) z_t)
struct CausalForward {
  CUtensorMap query, key, value;
  Rows out;
  FeatureMap<float> map;
  FusedTiles tiles;
  Factor<float> weight;
  const float *parts;  ///< scanned, one for each run
  const float *start;
  float *results;  ///< the last states
  float eps;
  float *denominator;  ///< null: not wanted
  int64_t denominator_batch, denominator_head;
};
int64_t causal_forward_workers();
void causal_forward(const CausalForward &args, cudaStream_t stream);

/// The backward of either side.
///
///   queries  g_t = r_t (y_t S_t^T + d_t z_t), S and z over the keys up to t,
///            d_t = -r_t phi(q_t) . y_t S_t^T
///   keys     g_j = w_j (v_j R_j^T + e_j), [R, e] the sums of r phi(q) [y, d]^T
///            over the queries from j on; dv_j = w_j phi(k_j) R_j; the weight's
///            gradient is phi(k_j) . (v_j R_j^T + e_j).
///
/// The rest is as in FusedBackward.
struct CausalBackward {
  CUtensorMap query, key, value, y;
  Rows grad_x, grad_value;
  FeatureMap<float> map;
  FusedTiles tiles;
  Factor<float> weight;
  const float *denominator;  ///< [batch, heads, length]
  float *d;                  ///< the same: queries write it, keys read it
  int64_t row_batch, row_head;
  float eps;
  /// [sequences, heads]: the first key with a weight; queries before it have
  /// no gradient. Null: all have one.
  const int64_t *live;
  const float *parts;  ///< scanned, `split` apart
  int split;
  const float *start;
  float *results;      ///< keys: R of whole sequences; null: not wanted
  float *grad_weight;  ///< keys; null: not wanted
  float *sums;         ///< [fused_blocks, feature_sums_size]
};
int64_t causal_backward_workers();
void causal_backward(bool keys, const CausalBackward &args,
                     cudaStream_t stream);

bool causal_fits(const TableShape &shape);

}  // namespace luna::cuda
