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
               const torch::nn::LayerNorm& norm, double dropout_p,
               bool in_product) {
  if (!ops::add_norm_is_fused(x, y, norm->weight)) {
    const auto sum = x + at::dropout(y, dropout_p, dropout_p > 0);
    return {sum, norm.ptr()->forward(sum)};
  }
  const auto [sum, normed] = ops::add_norm(
      x, y, norm->weight, norm->bias,
      {.dropout_p = dropout_p,
       .seed = nn::draw_seed(x, dropout_p),
       .eps = norm->options.eps(),
       .normed_dtype = in_product ? product_dtype(x) : x.scalar_type()});
  return {sum, normed};
}

std::pair<at::Tensor, at::Tensor> normed_rows(
    const at::Tensor& x, const torch::nn::LayerNorm& norm) {
  if (!ops::add_norm_is_fused(x, std::nullopt, norm->weight)) {
    return {x, norm.ptr()->forward(x)};
  }
  const auto [same, normed] = ops::add_norm(
      x, std::nullopt, norm->weight, norm->bias,
      {.eps = norm->options.eps(), .normed_dtype = product_dtype(x)});
  return {same, normed};
}

}  // namespace luna::models
