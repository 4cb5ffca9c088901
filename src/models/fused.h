#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/normalization.h>

#include <utility>

#include "ops/linear.h"

// What the models leave to kernels that do several operations in one pass over
// memory, where there are such kernels.

namespace luna::models {

/// What goes on from a sum x + dropout(y) to the next part of a layer.
struct Added {
  at::Tensor stream;  ///< what the next part is added to
  at::Tensor normed;  ///< what the next part reads
};

enum class Norm {
  kPre,   ///< the stream is the sum
  kPost,  ///< the stream is the norm of the sum
};

/// In one pass where there is a kernel. `in_product`: the next part is a matrix
/// product, so `normed` is in the dtype in which those are computed. No dropout
/// where p is 0.
Added add_norm(const at::Tensor& x, const at::Tensor& y,
               const torch::nn::LayerNorm& norm, double dropout_p, Norm kind,
               bool in_product = true);

/// x and norm(x), the latter for matrix products to read. Who goes on with the
/// x given back has one sum of gradients less to form.
std::pair<at::Tensor, at::Tensor> normed_rows(const at::Tensor& x,
                                              const torch::nn::LayerNorm& norm,
                                              bool in_product = true);

}  // namespace luna::models
