#pragma once

#include "ops/cuda/fused.h"

// Universal attention of short sequences in one launch each way: a warpgroup
// takes a (sequence, head) whole, so that its state stays on the chip. Rows of
// 64 numbers, 8 projections by 8 channels, sequences of one length.

namespace luna::cuda {

/// Heads are dealt to workers (warpgroups) in turn; all have as many tokens.
struct FusedHeads {
  int sequences, heads, workers;
  int queries, keys;  ///< tokens of a head, at least 1
};

/// The forward; `states` as fused_keys and fused_add leave them.
struct FusedShort {
  CUtensorMap query, key, value;
  Rows out;
  FeatureMap<float> map;
  FusedHeads heads;
  Factor<float> weight;
  float* states;
  float eps;
  float* denominator;  ///< null: not wanted
  int64_t denominator_batch, denominator_head;
};
bool fused_short_fits(const FeatureMap<float>& map);
int64_t fused_short_workers();
void fused_short(const FusedShort& args, cudaStream_t stream);

/// The backward, by as many workers as fused_backward: each side as there, but
/// that both have the same sums, head_sums and pieces, the keys' states never
/// leave the chip, and no one reads `tiles`.
struct FusedShortBackward {
  FusedBackward queries, keys;
  FusedHeads heads;
};
int fused_short_backward_pieces(const FeatureMap<float>& map);
void fused_short_backward(const FusedShortBackward& args, cudaStream_t stream);

}  // namespace luna::cuda
