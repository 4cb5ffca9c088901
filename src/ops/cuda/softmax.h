#pragma once

#include <cuda_runtime_api.h>

#include "ops/cuda/rows.h"
#include "ops/dropout.h"

// Softmax attention between a long side, the tokens, and a short one, the
// slots: pack_attention (slots ask, tokens answer) and unpack_attention (the
// other way round). Only the token side is cut and packed.

namespace luna::cuda {

struct SoftmaxDropout {
  const int64_t* seed = nullptr;  ///< int64[2] on the device; null: none
  ops::DropoutMap map = ops::DropoutMap::kPack;
  uint32_t threshold = 0;
  double scale = 1;
};

template <typename T>
struct SoftmaxProblem {
  bool pack;   ///< queries are slots
  Cut tokens;  ///< pieces of the token side
  int64_t heads, slots, depth, width;
  bool shared_slots;  ///< one set of queries for the whole batch (pack)
  Rows query, key, value;
  Factor<T> weight;  ///< of keys
  T scale;
  SoftmaxDropout dropout;
};

/// Scores are to the base 2. stats: the greatest score and 1 / sum of each
/// query row; both 0 where it saw no key.
template <typename T>
struct SoftmaxForward {
  SoftmaxProblem<T> problem;
  Rows out;
  Rows unrounded;    ///< T, contiguous; null: not wanted
  T *max, *inverse;  ///< null (unpack): not wanted
  int64_t stats_batch, stats_head;
  T* parts;  ///< pack: [pieces, heads, slots, width + 2]
};
template <typename T>
void softmax_forward(const SoftmaxForward<T>& args, cudaStream_t stream);
/// unpack of one token a sequence, not packed, without dropout, with at most
/// ops::kUnpackTokenSlots slots: out = sum_j w_j 2^(s_j - top) v_j over the sum
/// of the powers, s_j = scale log2(e) q . k_j. Only `problem` and `out` count.
template <typename T>
void unpack_token(const SoftmaxForward<T>& args, cudaStream_t stream);

/// delta_i = grad_i . out_i, for rows [batch, heads, length].
template <typename T>
void row_dots(int64_t batch, int64_t heads, int64_t length, int64_t width,
              const Rows& a, const Rows& b, T* dots, cudaStream_t stream);

enum class SoftmaxTarget { kQuery, kKey, kValue };

/// The gradient of one input. On the slots' side it is summed over pieces:
/// through `parts` [pieces, heads, slots, width (+ 1 for the weight)].
template <typename T>
struct SoftmaxBackward {
  SoftmaxProblem<T> problem;
  SoftmaxTarget target;
  Rows grad_out;
  const T *max, *inverse, *delta;  ///< of query rows
  int64_t stats_batch, stats_head;
  Rows grad;       ///< of the target
  T* grad_weight;  ///< with kKey; [batch, heads, keys] or null
  int64_t weight_batch, weight_head;
  T* parts;
};
template <typename T>
void softmax_backward(const SoftmaxBackward<T>& args, cudaStream_t stream);

}  // namespace luna::cuda
