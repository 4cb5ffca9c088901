#include <ATen/ATen.h>
#include <luna/models/encoder_layer.h>
#include <luna/nn/attention_registry.h>

namespace luna::models {

EncoderLayerOptions::EncoderLayerOptions(
    const ModelConfig& config, const config::OptionMap& attention_options_)
    : attention(config.attention),
      attention_options(attention_options_),
      width(config.width),
      heads(config.heads),
      ffn(config.ffn),
      pre_norm(config.norm == "pre"),
      activation(config.activation),
      dropout(config.dropout),
      activation_dropout(config.activation_dropout) {}

at::Tensor activate(const std::string& activation, const at::Tensor& x) {
  if (activation == "gelu") return at::gelu(x);
  if (activation == "gelu_tanh") return at::gelu(x, "tanh");
  TORCH_CHECK_VALUE(activation == "relu",
                    "activate: expected gelu, gelu_tanh or relu, got ",
                    activation);
  return at::relu(x);
}

FeedForwardImpl::FeedForwardImpl(const EncoderLayerOptions& options)
    : activation_(options.activation), dropout_(options.activation_dropout) {
  up = register_module("up", torch::nn::Linear(options.width, options.ffn));
  down = register_module("down", torch::nn::Linear(options.ffn, options.width));
}

at::Tensor FeedForwardImpl::forward(const at::Tensor& x) {
  return down(
      at::dropout(activate(activation_, up(x)), dropout_, is_training()));
}

EncoderLayerImpl::EncoderLayerImpl(const EncoderLayerOptions& options)
    : pre_(options.pre_norm), dropout_(options.dropout) {
  const auto norm = [&](const char* name) {
    return register_module(
        name, torch::nn::LayerNorm(torch::nn::LayerNormOptions({options.width})
                                       .eps(options.norm_eps)));
  };
  attention_ = nn::make_attention_layer(options.attention,
                                        {options.width, options.heads},
                                        options.attention_options);
  register_module("attention", nn::as_module(attention_));
  attention_norm = norm("attention_norm");
  if (nn::find_attention(options.attention).traits.memory) {
    memory_norm = norm("memory_norm");
  }
  ffn = register_module("ffn", FeedForward(options));
  ffn_norm = norm("ffn_norm");
}

at::Tensor EncoderLayerImpl::add(const at::Tensor& x, const at::Tensor& y,
                                 torch::nn::LayerNorm& norm) {
  const auto sum = x + at::dropout(y, dropout_, is_training());
  return pre_ ? sum : norm(sum);
}

LayerState EncoderLayerImpl::forward(const LayerState& state,
                                     const Masks& masks, Wanted wanted) {
  nn::LayerInput input;
  input.key_mask = masks.x;
  input.memory_mask = masks.memory;
  input.memory = state.memory;
  if (pre_ && state.memory) input.memory = memory_norm(*state.memory);
  const auto attended =
      attention_->forward(pre_ ? attention_norm(state.x) : state.x, input);

  LayerState next = state;
  if (state.memory && wanted.memory) {
    next.memory = add(*state.memory, *attended.memory, memory_norm);
  }
  if (wanted.rows == Rows::kNone) return next;
  const auto rows = [&](const at::Tensor& x) {
    return wanted.rows == Rows::kFirst ? x.narrow(1, 0, 1) : x;
  };
  next.x = add(rows(state.x), rows(attended.x), attention_norm);
  next.x = add(next.x, ffn(pre_ ? ffn_norm(next.x) : next.x), ffn_norm);
  return next;
}

}  // namespace luna::models
