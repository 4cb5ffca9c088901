#include <ATen/ATen.h>
#include <luna/models/bert.h>
#include <torch/nn/modules/container/modulelist.h>

#include "models/layer_stack.h"
#include "ops/lookup.h"

namespace luna::models {
namespace {

torch::nn::LayerNorm make_norm(const EncoderLayerOptions& layer) {
  return torch::nn::LayerNorm(
      torch::nn::LayerNormOptions({layer.width}).eps(layer.norm_eps));
}

}  // namespace

BertEmbeddingImpl::BertEmbeddingImpl(const BertConfig& config)
    : dropout_(config.layer.dropout) {
  const auto table = [&](const char* name, int64_t rows) {
    return register_module(name,
                           torch::nn::Embedding(rows, config.layer.width));
  };
  tokens = table("tokens", config.vocabulary);
  positions = table("positions", config.positions);
  token_types = table("token_types", config.token_types);
  norm = register_module("norm", make_norm(config.layer));
}

at::Tensor BertEmbeddingImpl::forward(const BertInput& input) {
  TORCH_CHECK_VALUE(input.ids.dim() == 2,
                    "Bert: expected ids [batch, length], got ",
                    input.ids.sizes());
  const auto length = input.ids.size(1);
  TORCH_CHECK_VALUE(length <= positions->weight.size(0),
                    "Bert: expected at most ", positions->weight.size(0),
                    " ids in a sequence (max_position_embeddings), got ",
                    length);
  TORCH_CHECK_VALUE(
      !input.type_ids || input.type_ids->sizes() == input.ids.sizes(),
      "Bert: expected type_ids of shape ", input.ids.sizes(), " (ids'), got ",
      input.type_ids->sizes());
  const auto types = input.type_ids
                         ? ops::lookup(token_types->weight, *input.type_ids)
                         : token_types->weight[0];
  const auto sum = ops::lookup(tokens->weight, input.ids) + types +
                   positions->weight.narrow(0, 0, length);
  return at::dropout(norm(sum), dropout_, is_training());
}

MaskedLmHeadImpl::MaskedLmHeadImpl(const BertConfig& config)
    : activation_(config.layer.activation) {
  const auto width = config.layer.width;
  dense = register_module("dense", torch::nn::Linear(width, width));
  norm = register_module("norm", make_norm(config.layer));
  if (!config.tied) {
    decoder = register_parameter(
        "decoder", at::empty({config.vocabulary, width}).normal_(0, 0.02));
  }
  bias = register_parameter("bias", at::zeros({config.vocabulary}));
}

at::Tensor MaskedLmHeadImpl::forward(const at::Tensor& x,
                                     const at::Tensor& embedding) {
  return at::linear(norm(activate(activation_, dense(x))),
                    decoder.defined() ? decoder : embedding, bias);
}

BertImpl::BertImpl(const BertConfig& config) : config_(config) {
  TORCH_CHECK_VALUE(
      config.vocabulary > 0 && config.positions > 0 && config.token_types > 0,
      "Bert: expected a vocabulary, positions and token types, "
      "got ",
      config.vocabulary, ", ", config.positions, " and ", config.token_types);
  TORCH_CHECK_VALUE(config.classes == 0 || config.pooler,
                    "Bert: expected a pooler under the classifier, got none");
  const auto width = config.layer.width;
  embedding = register_module("embedding", BertEmbedding(config));
  layers = make_layers("Bert", config.layers, config.layer);
  register_module("layers", as_list(layers));
  if (config.pooler) {
    pooler = register_module("pooler", torch::nn::Linear(width, width));
  }
  if (config.classes > 0) {
    head = register_module("head", torch::nn::Linear(width, config.classes));
  }
  if (config.masked_lm) {
    masked_lm = register_module("masked_lm", MaskedLmHead(config));
  }
}

BertOutput BertImpl::forward(const BertInput& input) {
  BertOutput output;
  Masks masks;
  if (input.mask) masks.x = input.mask->to(at::kBool);
  output.hidden = run_layers(layers, embedding(input), masks);
  const auto& last = output.hidden.back();
  if (pooler) output.pooled = at::tanh(pooler(last.select(1, 0)));
  if (head) {
    output.logits = head(
        at::dropout(output.pooled, config_.classifier_dropout, is_training()));
  }
  if (masked_lm) output.logits = masked_lm(last, embedding->tokens->weight);
  return output;
}

}  // namespace luna::models
