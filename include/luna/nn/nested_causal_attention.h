#pragma once

#include <luna/config/options.h>
#include <luna/nn/attention_layer.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <string>

namespace luna::nn {

struct NestedCausalAttentionOptions {
  bool tied = true;
  double dropout = 0.0;
  std::string activation = "softplus";

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& visit) {
    visit(self.tied, {.name = "tied",
                      .help = "keys are the values: one projection for both"});
    visit(self.dropout, {.name = "dropout",
                         .help = "dropout on both attention maps",
                         .minimum = 0,
                         .maximum = 1});
    visit(self.activation, {.name = "activation",
                            .help = "of the causal form's packing: softplus to "
                                    "the base 2, or elu + 1",
                            .choices = {"softplus", "elu"}});
  }
};

/// Nested attention for decoders: luna::ops::nested_causal_attention with its
/// projections. The memory P must hold nothing of x; it is handed through.
///
/// Names: pq_proj (P), pc_proj (packing keys), q_proj, out_proj and, tied:
/// c_proj (keys = values); untied: k_proj, v_proj. Start as NestedAttention.
/// Padding on the right is harmless and needs no mask; with one (bool), the
/// state leaves it out, so that a padded batch of prompts can be stepped on.
/// A mask with padding before a token is refused: positions count from 1.
/// StreamState: key_state [B,H,d,l], value_state [B,H,l,d], count [B],
/// packed_query [B,H,l,d], and memory_mask [B,l] where one was given. With a
/// state, forward takes no memory: the state holds it.
class NestedCausalAttentionImpl
    : public torch::nn::Cloneable<NestedCausalAttentionImpl>,
      public AttentionLayer {
 public:
  using Options = NestedCausalAttentionOptions;

  explicit NestedCausalAttentionImpl(
      const LayerShape& shape,
      const NestedCausalAttentionOptions& options = {});
  NestedCausalAttentionImpl(int64_t embed_dim, int64_t num_heads,
                            const NestedCausalAttentionOptions& options = {})
      : NestedCausalAttentionImpl(LayerShape{embed_dim, num_heads, true},
                                  options) {}
  void reset() override;
  void reset_parameters();

  LayerOutput forward(const at::Tensor& x,
                      const LayerInput& input = {}) override;
  at::Tensor step(const at::Tensor& x, StreamState& state) override;

  const NestedCausalAttentionOptions& options() const { return options_; }

  torch::nn::Linear pq_proj{nullptr}, pc_proj{nullptr}, q_proj{nullptr},
      out_proj{nullptr};
  torch::nn::Linear c_proj{nullptr};
  torch::nn::Linear k_proj{nullptr}, v_proj{nullptr};

 private:
  LayerShape shape_;
  NestedCausalAttentionOptions options_;
};
TORCH_MODULE(NestedCausalAttention);

}  // namespace luna::nn
