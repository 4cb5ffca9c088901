#pragma once

#include "ops/cuda/softmax.h"

// nested_causal_attention by tensor cores: bfloat16 rows of at most 64 numbers
// (multiples of 8, in 16-byte words) and at most 128 slots. Tokens are walked
// in chunks of 16; the maps between tokens and slots never leave the chip but
// for w and du of the backward, in bfloat16.

namespace luna::cuda {

struct NestedMma {
  Cut pieces;
  int64_t heads, slots, depth, width;
  Rows query, pack_key, key, value;
  Rows packed;           ///< batch stride 0 where shared
  const int64_t* count;  ///< tokens before each sequence's first; null: none
  const bool* mask;      ///< [sequences, slots]; null: all take part
  float scale;
  bool elu;
  SoftmaxDropout pack_dropout, unpack_dropout;
  Rows out;  ///< forward
  /// Backward; grad_out may be null data: zeros.
  Rows grad_out, grad_query, grad_pack_key, grad_key, grad_value;
  /// Sums over each piece of k a^T and a v^T, which nested_mma_scan makes sums
  /// over all before it: [pieces, heads, nested_mma_state].
  float* states;
  /// The same of the backward: of q^T du and w^T grad_out, over all behind it.
  float* rests;
  /// w / position and du, [chunks, heads, 2, groups, 32] words of 16 bytes,
  /// where chunks = pieces * nested_mma_chunks.
  void* maps;
  float* packed_parts;  ///< [pieces, heads, slots, depth]
};

/// Slots are taken 16 at a time, by a group of 1, 2, 4 or 8 warps.
int64_t nested_mma_groups(int64_t slots);
/// Numbers of a piece's sums.
int64_t nested_mma_state(int64_t slots);
/// Bytes of `maps` for each piece of `size` tokens and each head.
int64_t nested_mma_map_bytes(int64_t slots, int64_t size);

/// Sums over each piece.
void nested_mma_sums(const NestedMma& args, cudaStream_t stream);

/// What is before (behind) each piece, from `start`, and the whole; states as
/// the op has them: key [sequences, heads, depth, slots], value [sequences,
/// heads, slots, width]. Null: zeros, not wanted.
struct NestedMmaScan {
  Cut pieces;
  int64_t heads, slots, depth, width;
  bool backwards;
  float* parts;
  const float *key_start, *value_start;
  float *key_total, *value_total;
};
void nested_mma_scan(const NestedMmaScan& args, cudaStream_t stream);

void nested_mma_forward(const NestedMma& args, cudaStream_t stream);
/// grad_query, rests of each piece, maps.
void nested_mma_backward_queries(const NestedMma& args, cudaStream_t stream);
/// The other gradients.
void nested_mma_backward_keys(const NestedMma& args, cudaStream_t stream);

}  // namespace luna::cuda
