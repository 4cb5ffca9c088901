#include "models/fused.h"

#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/dropout.h>

#include "nn/heads.h"
#include "ops/add_norm.h"

namespace luna::models {
namespace {

/// What autocast would make of a matrix product's input.
at::ScalarType product_dtype(const at::Tensor& x) {
  const auto device = x.device().type();
  return at::autocast::is_autocast_enabled(device)
             ? at::autocast::get_autocast_dtype(device)
             : x.scalar_type();
}

}  // namespace

Added add_norm(const at::Tensor& x, const at::Tensor& y,
               const torch::nn::LayerNorm& norm, double dropout_p, Norm kind,
               bool in_product) {
  const bool post = kind == Norm::kPost;
  if (!ops::add_norm_is_fused(x, y, norm->weight)) {
    const auto sum = x + at::dropout(y, dropout_p, dropout_p > 0);
    const auto normed = norm.ptr()->forward(sum);
    return {post ? normed : sum, normed};
  }
  const auto dtype = in_product ? product_dtype(x) : x.scalar_type();
  ops::AddNormOptions options = {.dropout_p = dropout_p,
                                 .seed = nn::draw_seed(x, dropout_p),
                                 .eps = norm->options.eps()};
  options.normed_dtype = post ? x.scalar_type() : dtype;
  if (post && dtype != x.scalar_type()) {
    options.low_dtype = dtype;
  }
  const auto [sum, normed, low] =
      ops::add_norm(x, y, norm->weight, norm->bias, options);
  return {post ? normed : sum, options.low_dtype ? low : normed};
}

std::pair<at::Tensor, at::Tensor> normed_rows(const at::Tensor& x,
                                              const torch::nn::LayerNorm& norm,
                                              bool in_product) {
  if (!ops::add_norm_is_fused(x, std::nullopt, norm->weight)) {
    return {x, norm.ptr()->forward(x)};
  }
  const auto result = ops::add_norm(
      x, std::nullopt, norm->weight, norm->bias,
      {.eps = norm->options.eps(),
       .normed_dtype = in_product ? product_dtype(x) : x.scalar_type()});
  return {result.sum, result.normed};
}

}  // namespace luna::models
