#pragma once

#include <luna/models/encoder_layer.h>
#include <torch/nn/modules/embedding.h>

#include <optional>
#include <vector>

namespace luna::models {

/// BERT's sizes; 0 where there is no sensible default.
struct BertConfig {
  int64_t vocabulary = 0, positions = 0, token_types = 2;
  int64_t layers = 0;
  EncoderLayerOptions layer{};  ///< post-norm
  bool pooler = true;           ///< tanh(Linear) of the first token
  int64_t classes = 0;          ///< of a classifier over the pooler; 0: none
  bool masked_lm = false;       ///< predicts tokens
  bool tied = true;             ///< by the token embedding itself
  double classifier_dropout = 0;
};

struct BertInput {
  at::Tensor ids;                        ///< [B,n] int64
  std::optional<at::Tensor> type_ids{};  ///< [B,n] int64; none: all 0
  std::optional<at::Tensor> mask{};      ///< [B,n] bool, true = real; none: all
};

struct BertOutput {
  /// [B,n,D]: of the embedding, then of each layer.
  std::vector<at::Tensor> hidden{};
  at::Tensor pooled;  ///< [B,D], if there is a pooler
  at::Tensor logits;  ///< [B,classes] or, masked_lm, [B,n,vocabulary]
};

/// Token, position and token-type embeddings, summed, then LayerNorm.
class BertEmbeddingImpl : public torch::nn::Module {
 public:
  explicit BertEmbeddingImpl(const BertConfig& config);

  at::Tensor forward(const BertInput& input);

  torch::nn::Embedding tokens{nullptr}, positions{nullptr},
      token_types{nullptr};
  torch::nn::LayerNorm norm{nullptr};

 private:
  double dropout_;
};
TORCH_MODULE(BertEmbedding);

/// Vectors to the logits of every token:
/// norm(activation(dense(x))) E^T + bias, E the embedding or `decoder`.
class MaskedLmHeadImpl : public torch::nn::Module {
 public:
  explicit MaskedLmHeadImpl(const BertConfig& config);

  at::Tensor forward(const at::Tensor& x, const at::Tensor& embedding);

  torch::nn::Linear dense{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  at::Tensor decoder{}, bias{};  ///< decoder: undefined if tied

 private:
  std::string activation_;
};
TORCH_MODULE(MaskedLmHead);

/// BERT over any mechanism of the registry without a memory. Names:
/// embedding.{tokens,positions,token_types,norm}.*, layers.N.* (EncoderLayer),
/// pooler.*, head.* (classifier), masked_lm.{dense,norm}.*, masked_lm.bias,
/// masked_lm.decoder
class BertImpl : public torch::nn::Module {
 public:
  explicit BertImpl(const BertConfig& config);

  BertOutput forward(const BertInput& input);

  const BertConfig& config() const { return config_; }

  BertEmbedding embedding{nullptr};
  std::vector<EncoderLayer> layers{};
  torch::nn::Linear pooler{nullptr}, head{nullptr};
  MaskedLmHead masked_lm{nullptr};

 private:
  BertConfig config_;
};
TORCH_MODULE(Bert);

}  // namespace luna::models
