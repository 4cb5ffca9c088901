#pragma once

#include <cuda_runtime_api.h>

#include "ops/cuda/rows.h"

// Sums of outer products and what is read from them: the parts of which
// linear attention is made, causal or not, forward and backward, for any
// widths. A state is S [F, ld], ld = width + 1 where the normaliser is its
// last column.

namespace luna::cuda {

/// For each piece p and head h:
///   parts[p, h] = sum_t a_t [b_t, last_t]^T       [F, ld]
template <typename T>
struct OuterSums {
  Cut pieces;
  int64_t heads, features, width, ld;
  Operand<T> a, b;
  Factor<T> last;  ///< read where ld > width
  T* parts;
  bool split = false;  ///< float: by split_product.cuh
};
template <typename T>
void outer_sums(const OuterSums<T>& args, cudaStream_t stream);

/// total[s, h] = start[s, h] + the parts of sequence s, in order. With
/// `scan`, parts[p] becomes what stands before piece p (after it, with
/// `backwards`; the order is then from the end).
template <typename T>
struct AddParts {
  Cut pieces;
  int64_t heads, size;
  T* parts;
  const T* start;  ///< null: 0
  T* total;        ///< null: not wanted
  bool scan, backwards;
  /// Where not null: every `save_every`th piece's start, to row
  /// save_first[s] + i (or s * save_per_sequence + i) of [rows, heads, size].
  T* saved = nullptr;
  Cut save = {};
  int64_t save_every = 1;
};
template <typename T>
void add_parts(const AddParts<T>& args, cudaStream_t stream);

/// Rows of the output from a state and, where causal, from the tokens of the
/// same piece:
///
///   plain       out_t = x_t S + sum_j (x_t . y_j) z_j
///   transposed  out_t = [x_t, c_t] S^T + sum_j (x_t . y_j + c) z_j
///
/// over j <= t, or j >= t with `backwards`. c is d_t (d_j with `backwards`,
/// and c_t = 1 for S). Then each row is divided by its guarded denominator
/// (normalise) and multiplied by `out_factor`.
template <typename T>
struct Apply {
  Cut tiles;   ///< of 64 tokens
  Cut pieces;  ///< whose states `sums` holds; not causal: unused
  int64_t heads, depth, width;
  bool causal, backwards, transposed;
  Operand<T> x;
  const T* sums;  ///< [sequences or pieces, heads, F, ld]
  int64_t sums_size, ld;
  bool with_last;  ///< S has its last column
  Operand<T> y, z;
  Factor<T> d;
  bool normalize;
  T eps;
  T* denominator;  ///< [batch, heads, length] or null
  int64_t denominator_batch, denominator_head;
  Factor<T> out_factor;
  Rows out;
  bool split;  ///< float: by split_product.cuh
};
template <typename T>
void apply_sums(const Apply<T>& args, cudaStream_t stream);

/// Of each row: inverse = 1 / guarded den, d = the denominator's gradient
/// - (grad / den) . out, 0 where the guard holds. Both 0 for a row that sees
/// no key (`live`: the first key with a weight; null: all see one).
template <typename T>
struct RowGradients {
  Cut tiles;
  int64_t heads, width;
  bool causal, normalize;
  T eps;
  Rows grad, out;
  const T* denominator;  ///< [batch, heads, length] contiguous
  const int64_t* live;   ///< [sequences, heads]
  const Cut keys;        ///< for the lengths where `live` is given
  T *inverse, *d;
  int64_t out_batch, out_head;  ///< strides of denominator, inverse and d
};
template <typename T>
void row_gradients(const RowGradients<T>& args, cudaStream_t stream);

/// live[s, h] = the first key with weight > 0, else the sequence's length.
template <typename T>
void first_live_keys(const Cut& keys, int64_t heads, const Factor<T>& weight,
                     int64_t* live, cudaStream_t stream);

/// grad_weight_t = phi_t . g_t; to_t = w_t g_t.
template <typename T>
struct FinishKeys {
  int64_t batch, heads, length, features;
  Rows phi, g, to;
  Factor<T> weight;
  T* grad_weight;  ///< [batch, heads, length]
};
template <typename T>
void finish_keys(const FinishKeys<T>& args, cudaStream_t stream);

}  // namespace luna::cuda
