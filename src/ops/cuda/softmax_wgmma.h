#pragma once

#include "ops/cuda/softmax_mma.h"

// pack_attention and unpack_attention by products of a warpgroup: bfloat16
// rows of up to 64 numbers. The arguments are those of softmax_mma.h; unpack's
// backward needs what forward left.

namespace luna::cuda {

/// Tokens of a piece are best a multiple of this.
constexpr int64_t kSoftmaxWgmmaTokens = 128;

bool softmax_wgmma_fits(const SoftmaxProblem<float>& problem);
bool softmax_wgmma_fits(const SoftmaxMmaBackward& args);
/// The pieces' sums are left in `parts`, if there are any.
void softmax_wgmma_forward(const SoftmaxForward<float>& args,
                           cudaStream_t stream);
/// The same.
void softmax_wgmma_backward(const SoftmaxMmaBackward& args,
                            cudaStream_t stream);

}  // namespace luna::cuda
