#pragma once

#include <luna/config/options.h>
#include <luna/nn/attention_layer.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

namespace luna::nn {

struct NestedAttentionOptions {
  bool tied = true;
  int64_t pack_heads = 0;
  double dropout = 0.0;
  bool dynamic_projection = true;

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& visit) {
    visit(self.tied, {.name = "tied",
                      .help = "keys are the values: one projection for both"});
    visit(self.pack_heads, {.name = "pack_heads",
                            .help = "heads of pack; 0: as many as of unpack",
                            .minimum = 0});
    visit(self.dropout, {.name = "dropout",
                         .help = "dropout on both attention maps",
                         .minimum = 0,
                         .maximum = 1});
    visit(self.dynamic_projection,
          {.name = "dynamic_projection",
           .help = "a sequence shorter than the memory uses as many of the "
                   "memory's rows as it has tokens"});
  }
};

/// A layer of nested attention, self or cross; the memory P is its input.
///
///   Y_P = softmax_m( pq(P) s . K_p^T ) V_p           packed, [B,l,D]
///   Y_X = out( softmax_l( q(X) s . K_u^T ) V_u )     K_u, V_u from Y_P
///
/// -> {Y_X, Y_P}: residuals and norms are the model's. Keys of the padding
/// are left out of pack, rows of P beyond a sequence's length out of unpack.
/// Names: pq_proj, q_proj, out_proj and, tied: pc_proj (K_p = V_p), c_proj
/// (K_u = V_u); untied: pk_proj, pv_proj, k_proj, v_proj. They start xavier
/// uniform, gain 1/sqrt(2), out_proj 1, biases 0. It keeps no stream.
class NestedAttentionImpl : public torch::nn::Cloneable<NestedAttentionImpl>,
                            public AttentionLayer {
 public:
  using Options = NestedAttentionOptions;

  explicit NestedAttentionImpl(LayerShape shape,
                               const NestedAttentionOptions& options = {});
  NestedAttentionImpl(int64_t embed_dim, int64_t num_heads,
                      const NestedAttentionOptions& options = {})
      : NestedAttentionImpl(LayerShape{embed_dim, num_heads, false}, options) {}
  void reset() override;
  void reset_parameters();

  LayerOutput forward(const at::Tensor& x,
                      const LayerInput& input = {}) override;

  const NestedAttentionOptions& options() const { return options_; }
  int64_t num_heads() const { return shape_.num_heads; }  ///< of unpack

  torch::nn::Linear pq_proj{nullptr}, q_proj{nullptr}, out_proj{nullptr};
  torch::nn::Linear pc_proj{nullptr}, c_proj{nullptr};
  torch::nn::Linear pk_proj{nullptr}, pv_proj{nullptr}, k_proj{nullptr},
      v_proj{nullptr};

 private:
  at::Tensor pack(const at::Tensor& key, const at::Tensor& value,
                  const LayerInput& input);
  at::Tensor unpack(const at::Tensor& query, const at::Tensor& packed,
                    const std::optional<at::Tensor>& memory_mask,
                    const LayerInput& input);

  LayerShape shape_;
  NestedAttentionOptions options_;
};
TORCH_MODULE(NestedAttention);

/// [B,l] bool, row i of the memory is used where i < the sequence's length;
/// none where every sequence is as long as the memory. `keys` [B,m,D].
std::optional<at::Tensor> dynamic_memory_mask(
    const at::Tensor& keys, int64_t memory_length,
    const std::optional<at::Tensor>& key_mask,
    const std::optional<at::Tensor>& cu_seqlens);

}  // namespace luna::nn
