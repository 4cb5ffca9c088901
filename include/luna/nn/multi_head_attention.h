#pragma once

#include <luna/config/options.h>
#include <luna/nn/attention_layer.h>
#include <luna/nn/head_attention.h>
#include <luna/nn/local_sum.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <string>

namespace luna::nn {

struct MultiHeadAttentionOptions {
  LayerShape shape{};
  std::string mechanism = "universal";  ///< a head-level one of attentions()
  config::OptionMap options{};          ///< the mechanism's
};

/// Projections and heads around a head-level mechanism:
///
///   out_proj( attend( q_proj(x), k_proj(c), v_proj(c) ) ),  c = context or x
///
/// With shape.local there is local(v_proj(x)) added to what attend gives: what
/// neighbours have, whatever attention looks at; then the layer is not causal
/// and takes no context.
///
/// Names: q_proj, k_proj, v_proj, out_proj (weight, bias), and feature_map,
/// the mechanism itself: feature_map.projection ... of `universal`,
/// feature_map.random_projection of `rff`; nothing of those without weights.
/// local.weight with shape.local.
/// The memory is handed through. StreamState: the mechanism's one tensor.
class MultiHeadAttentionImpl
    : public torch::nn::Cloneable<MultiHeadAttentionImpl>,
      public AttentionLayer {
 public:
  explicit MultiHeadAttentionImpl(const MultiHeadAttentionOptions& options);
  void reset() override;

  LayerOutput forward(const at::Tensor& x,
                      const LayerInput& input = {}) override;
  at::Tensor step(const at::Tensor& x, StreamState& state) override;

  const std::shared_ptr<HeadAttention>& heads() const { return heads_; }
  const MultiHeadAttentionOptions& options() const { return options_; }

  torch::nn::Linear q_proj{nullptr}, k_proj{nullptr}, v_proj{nullptr},
      out_proj{nullptr};
  LocalSum local{nullptr};

 private:
  MultiHeadAttentionOptions options_;
  std::shared_ptr<HeadAttention> heads_;
};
TORCH_MODULE(MultiHeadAttention);

}  // namespace luna::nn
