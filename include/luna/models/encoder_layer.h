#pragma once

#include <luna/data/batch.h>
#include <luna/models/model_config.h>
#include <luna/nn/attention_layer.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

namespace luna::models {

/// What one layer is made of; ModelConfig explains what it has of these.
struct EncoderLayerOptions {
  EncoderLayerOptions() = default;
  EncoderLayerOptions(const ModelConfig& config,
                      const config::OptionMap& attention_options);

  std::string attention = "universal";
  config::OptionMap attention_options{};
  /// A decoder's, of the source; "same": the two above.
  std::string source_attention = "same";
  config::OptionMap source_options{};
  int64_t width = 0, heads = 1, ffn = 0;
  nn::LocalShape local{};  ///< `columns` is the task's: the encoder's to say
  bool pre_norm = true;
  double norm_eps = 1e-5;
  std::string activation = "gelu";  ///< gelu, gelu_tanh (its approximation)
                                    ///< or relu
  double dropout = 0, activation_dropout = 0;
};

/// down( dropout( activation( up(x) ) ) ), position by position.
class FeedForwardImpl : public torch::nn::Module {
 public:
  explicit FeedForwardImpl(const EncoderLayerOptions& options);

  at::Tensor forward(const at::Tensor& x);

  torch::nn::Linear up{nullptr}, down{nullptr};

 private:
  std::string activation_;
  double dropout_;
};
TORCH_MODULE(FeedForward);

/// gelu, gelu_tanh or relu of x.
at::Tensor activate(const std::string& activation, const at::Tensor& x);

/// What goes from layer to layer.
struct LayerState {
  at::Tensor x;                        ///< [B,n,D]; packed: [1,T,D]
  std::optional<at::Tensor> memory{};  ///< P [B,l,D], or [l,D] for all
  /// What the next layer's products read of x, where it is known already.
  std::optional<at::Tensor> normed{};
};

/// Tokens that stay when those that count as padding are left out.
struct KeptRows {
  at::Tensor from, to;  ///< [T] and [B n]: see ops/take_rows.h
};

/// Which positions and memory rows are real; none: all.
struct Masks {
  std::optional<at::Tensor> x{};       ///< [B,n] bool
  std::optional<at::Tensor> memory{};  ///< [B,l] bool
  /// Sequences one after the other: the filler counts as one of them here, so
  /// that B is B + 1 and x needs no mask.
  std::optional<data::Packing> packed{};
  /// Where packed sequences come from, if the data's are side by side.
  std::optional<KeptRows> kept{};
};

/// What somebody reads of a layer's result; the rest is not computed.
/// kFirst: [B,1,D], packed [1,B,D] without the filler's.
enum class Rows { kAll, kFirst, kNone };
struct Wanted {
  Rows rows = Rows::kAll;
  bool memory = true;
};

/// Pre-norm: the norm that reads a layer's result, where there is one.
struct NextNorm {
  torch::nn::LayerNorm norm{nullptr};
  bool in_product = true;  ///< a matrix product reads what it gives
};

/// Attention and FFN, each with dropout, residual and LayerNorm:
///
///   post-norm  x = LN(x + attention(x)),  x = LN(x + ffn(x))
///   pre-norm   x = x + attention(LN(x)),  x = x + ffn(LN(x))
///
/// A mechanism with a memory P updates it beside x, in the same way and with a
/// norm of its own; P has no FFN. Names: attention.*, attention_norm.*,
/// memory_norm.* (with a memory), ffn.up.*, ffn.down.*, ffn_norm.*
class EncoderLayerImpl : public torch::nn::Module {
 public:
  explicit EncoderLayerImpl(const EncoderLayerOptions& options);

  LayerState forward(const LayerState& state, const Masks& masks = {},
                     Wanted wanted = {}, const NextNorm& next = {});

  const std::shared_ptr<nn::AttentionLayer>& attention() const {
    return attention_;
  }
  bool pre_norm() const { return pre_; }

  torch::nn::LayerNorm attention_norm{nullptr}, memory_norm{nullptr},
      ffn_norm{nullptr};
  FeedForward ffn{nullptr};

 private:
  std::shared_ptr<nn::AttentionLayer> attention_;
  bool pre_;
  /// What a row gets depends on no other row's query.
  bool rows_are_apart_ = true;
  double dropout_;
};
TORCH_MODULE(EncoderLayer);

}  // namespace luna::models
