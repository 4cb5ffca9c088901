#include <ATen/ATen.h>
#include <luna/models/encoder_layer.h>
#include <luna/nn/attention_registry.h>

namespace luna::models {

FeedForwardImpl::FeedForwardImpl(const ModelConfig& config)
    : relu_(config.activation == "relu"), dropout_(config.activation_dropout) {
  up = register_module("up", torch::nn::Linear(config.width, config.ffn));
  down = register_module("down", torch::nn::Linear(config.ffn, config.width));
}

at::Tensor FeedForwardImpl::forward(const at::Tensor& x) {
  const auto hidden = up(x);
  return down(at::dropout(relu_ ? at::relu(hidden) : at::gelu(hidden), dropout_,
                          is_training()));
}

EncoderLayerImpl::EncoderLayerImpl(const ModelConfig& config,
                                   const config::OptionMap& attention_options)
    : pre_(config.norm == "pre"), dropout_(config.dropout) {
  const auto norm = [&](const char* name) {
    return register_module(
        name,
        torch::nn::LayerNorm(torch::nn::LayerNormOptions({config.width})));
  };
  attention_ = nn::make_attention_layer(
      config.attention, {config.width, config.heads}, attention_options);
  register_module("attention", nn::as_module(attention_));
  attention_norm = norm("attention_norm");
  if (nn::find_attention(config.attention).traits.memory) {
    memory_norm = norm("memory_norm");
  }
  ffn = register_module("ffn", FeedForward(config));
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
