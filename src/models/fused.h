#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/normalization.h>

#include <utility>

#include "ops/linear.h"

// What the models leave to kernels that do several operations in one pass over
// memory, where there are such kernels.

namespace luna::models {

/// x + dropout(y), and what a norm makes of it.
struct Added {
  at::Tensor sum, normed;
};

/// In one pass where there is a kernel. `in_product`: the norm is wanted in the
/// dtype in which matrix products are computed. No dropout where p is 0.
Added add_norm(const at::Tensor& x, const at::Tensor& y,
               const torch::nn::LayerNorm& norm, double dropout_p,
               bool in_product);

/// x and norm(x), the latter for matrix products to read. Who goes on with the
/// x given back has one sum of gradients less to form.
std::pair<at::Tensor, at::Tensor> normed_rows(const at::Tensor& x,
                                              const torch::nn::LayerNorm& norm);

}  // namespace luna::models
