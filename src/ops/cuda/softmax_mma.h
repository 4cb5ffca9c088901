#pragma once

#include "ops/cuda/softmax.h"

// pack_attention and unpack_attention by tensor cores: bfloat16 rows of at
// most 128 numbers (multiples of 8, in 16-byte words), at most 512 slots. The
// maps between tokens and slots never leave the chip.

namespace luna::cuda {

struct SoftmaxShape {
  int64_t slots, depth, width;
};
/// Whether this device gives a block the shared memory of an H100, which the
/// kernels count on.
bool has_room_for_mma();
/// And whether all slots fit there.
bool softmax_mma_fits(const SoftmaxShape& shape);

/// As softmax_forward; `parts` null where every sequence is one piece.
void softmax_mma_forward(const SoftmaxForward<float>& args,
                         cudaStream_t stream);

/// All gradients. With x, y the tokens' rows and p, z the slots':
///
///           x      y         p      z
///   pack    key    value     query  grad_out
///   unpack  query  grad_out  key    value
///
/// scores are x p^T, and y z^T is the gradient of the weights.
struct SoftmaxMmaBackward {
  SoftmaxProblem<float> problem;  ///< tokens, sizes, weight, scale, dropout
  Rows x, y, p, z;
  Rows grad_x, grad_y;  ///< grad_y: pack alone
  Rows grad_p, grad_z;  ///< grad_z: unpack alone
  /// Pack: as forward left them, [sequences, heads, slots (, width)].
  const float *max, *inverse, *output;
  /// Unpack: as forward left them, [batch, heads, length]; null: make it anew.
  const float* logsumexp;
  Rows out;
  /// Unpack with more than 16 slots: two numbers a token, [2, batch, heads,
  /// length], from one kernel to the next.
  float* rows;
  int64_t length;
  /// The slots' sums of each piece, [pieces, heads, slots, depth], then
  /// (unpack) [pieces, heads, slots, width]. Null where every sequence is one
  /// piece and has slots of its own.
  float* parts;
};
void softmax_mma_backward(const SoftmaxMmaBackward& args, cudaStream_t stream);

}  // namespace luna::cuda
