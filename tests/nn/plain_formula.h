#pragma once

// Every mechanism as SPEC and papers write it, from a module's own weights:
// quadratic, explicit, and without any of luna's ops.

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <optional>
#include <string>

#include "nn/layers.h"

namespace luna::nn::testing {

/// The weights and buffers of a module by their names.
class Weights {
 public:
  explicit Weights(const torch::nn::Module& module)
      : parameters_(module.named_parameters()),
        buffers_(module.named_buffers()) {}

  at::Tensor operator[](const std::string& name) const {
    return parameters_.contains(name) ? parameters_[name] : buffers_[name];
  }
  at::Tensor linear(const std::string& name, const at::Tensor& x) const {
    return at::matmul(x, (*this)[name + ".weight"].t()) +
           (*this)[name + ".bias"];
  }
  /// linear, cut into heads: [B,n,D] -> [B,H,n,d].
  at::Tensor heads(const std::string& name, const at::Tensor& x,
                   int64_t count) const {
    return linear(name, x)
        .reshape({x.size(0), x.size(1), count, -1})
        .permute({0, 2, 1, 3});
  }

 private:
  torch::OrderedDict<std::string, at::Tensor> parameters_, buffers_;
};

/// Universal attention's phi, by the networks themselves.
at::Tensor plain_feature_map(const Weights& weights, const std::string& prefix,
                             const at::Tensor& x, bool nonneg = true);

/// A layer's output at every position; key_mask [B,m] bool or float.
at::Tensor plain_layer(const Form& form, const torch::nn::Module& module,
                       const at::Tensor& x, const nn::LayerInput& input);

/// Nested attention's output and packed memory; `used` [B,l]: rows of the
/// memory that unpack sees.
std::tuple<at::Tensor, at::Tensor> plain_nested(
    const Weights& weights, bool tied, int64_t pack_heads, const at::Tensor& x,
    const at::Tensor& context, const at::Tensor& memory,
    const at::Tensor& key_mask, const at::Tensor& used);

at::Tensor plain_nested_causal(const Weights& weights, bool tied,
                               const std::string& activation,
                               const at::Tensor& x, const at::Tensor& memory);

}  // namespace luna::nn::testing
