#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <luna/models/encoder_layer.h>
#include <luna/nn/attention_registry.h>

#include "models/attention_options.h"
#include "models/fused.h"
#include "nn/heads.h"
#include "ops/feed_forward.h"
#include "ops/token_linear.h"

namespace luna::models {

namespace {

/// Of x [B,n,D] or, packed, [1,T,D], the rows that somebody reads.
at::Tensor wanted_rows(const at::Tensor& x, Rows rows, const Masks& masks) {
  if (rows == Rows::kAll) return x;
  if (rows == Rows::kNone) return x.narrow(1, 0, 0);
  if (!masks.packed) return x.narrow(1, 0, 1);
  const data::Packing& packed = *masks.packed;
  return x.index_select(1, packed.starts.narrow(0, 0, packed.samples()));
}

/// Where each sequence's begin among them, the filler's none last.
at::Tensor wanted_starts(const data::Packing& packed, Rows rows) {
  const int64_t each = rows == Rows::kNone ? 0 : 1;
  return at::arange(packed.starts.size(0), packed.starts.options())
      .clamp_max(packed.samples() * each);
}

}  // namespace

EncoderLayerOptions::EncoderLayerOptions(
    const ModelConfig& config, const config::OptionMap& attention_options_)
    : attention(config.attention),
      attention_options(attention_options_),
      source_attention(config.source_attention),
      width(config.width),
      heads(config.heads),
      ffn(config.ffn),
      local{.taps = config.local},
      pre_norm(config.norm == "pre"),
      activation(config.activation),
      dropout(config.dropout),
      activation_dropout(config.activation_dropout) {
  if (source_attention == "same") return;
  ModelConfig source = config;
  source.attention = source_attention;
  source.attention_options.clear();
  source_options = models::attention_options(source);
}

at::Tensor activate(const std::string& activation, const at::Tensor& x) {
  if (activation == "gelu") return at::gelu(x);
  if (activation == "gelu_tanh") return at::gelu(x, "tanh");
  TORCH_CHECK_VALUE(activation == "relu",
                    "activate: expected gelu, gelu_tanh or relu, got ",
                    activation);
  return at::relu(x);
}

namespace {

/// Whether these are a decoding step's tokens [B,D], for which there are
/// kernels of their own: without gradients, in the weights' own dtype.
bool are_tokens(const at::Tensor& x, const torch::nn::Linear& up) {
  return x.dim() == 2 && !at::GradMode::is_enabled() &&
         !at::autocast::is_autocast_enabled(x.device().type()) &&
         x.scalar_type() == up->weight.scalar_type();
}

}  // namespace

FeedForwardImpl::FeedForwardImpl(const EncoderLayerOptions& options)
    : activation_(options.activation), dropout_(options.activation_dropout) {
  up = register_module("up", torch::nn::Linear(options.width, options.ffn));
  down = register_module("down", torch::nn::Linear(options.ffn, options.width));
}

at::Tensor FeedForwardImpl::forward(const at::Tensor& x) {
  const double p = is_training() ? dropout_ : 0.0;
  if (activation_ == "gelu" && p < 1 &&
      ops::feed_forward_is_fused(x, up->weight, up->bias, down->weight,
                                 down->bias)) {
    return ops::feed_forward(x, up->weight, up->bias, down->weight, down->bias,
                             p, nn::draw_seed(x, p));
  }
  const auto drop = [&](const at::Tensor& hidden) {
    return at::dropout(hidden, dropout_, is_training());
  };
  if (are_tokens(x, up)) {
    const bool relu = activation_ == "relu";
    const auto hidden = ops::token_linear(x, up->weight, up->bias, relu);
    return ops::token_linear(
        drop(relu ? hidden : activate(activation_, hidden)), down->weight,
        down->bias);
  }
  const auto hidden =
      activate(activation_, ops::linear(x, up->weight, up->bias));
  return ops::linear(drop(hidden), down->weight, down->bias);
}

EncoderLayerImpl::EncoderLayerImpl(const EncoderLayerOptions& options)
    : pre_(options.pre_norm), dropout_(options.dropout) {
  const auto norm = [&](const char* name) {
    return register_module(
        name, torch::nn::LayerNorm(torch::nn::LayerNormOptions({options.width})
                                       .eps(options.norm_eps)));
  };
  attention_ = nn::make_attention_layer(options.attention,
                                        {.embed_dim = options.width,
                                         .num_heads = options.heads,
                                         .local = options.local},
                                        options.attention_options);
  rows_are_apart_ =
      rows_are_apart(options.attention_options) && options.local.taps == 0;
  register_module("attention", nn::as_module(attention_));
  attention_norm = norm("attention_norm");
  if (nn::find_attention(options.attention).traits.memory) {
    memory_norm = norm("memory_norm");
  }
  ffn = register_module("ffn", FeedForward(options));
  ffn_norm = norm("ffn_norm");
}

LayerState EncoderLayerImpl::forward(const LayerState& state,
                                     const Masks& masks, Wanted wanted,
                                     const NextNorm& next_norm) {
  nn::LayerInput input;
  input.key_mask = masks.x;
  input.memory_mask = masks.memory;
  input.memory = state.memory;
  if (masks.packed) {
    input.cu_seqlens_q = masks.packed->starts;
    input.longest = masks.packed->longest;
  }
  if (pre_ && state.memory) input.memory = memory_norm(*state.memory);
  at::Tensor x = state.x, normed = state.normed.value_or(x);
  if (pre_ && !state.normed) {
    std::tie(x, normed) = normed_rows(x, attention_norm);
  }
  const auto rows = [&](const at::Tensor& all) {
    return wanted_rows(all, wanted.rows, masks);
  };
  const bool asks_all = wanted.rows == Rows::kAll || !rows_are_apart_;
  if (!asks_all) {
    input.context = normed;
    if (masks.packed) {
      input.cu_seqlens_k = input.cu_seqlens_q;
      input.cu_seqlens_q = wanted_starts(*masks.packed, wanted.rows);
    }
  }
  const auto attended =
      attention_->forward(asks_all ? normed : rows(normed), input);

  LayerState next{x, state.memory};
  if (state.memory && wanted.memory) {
    const auto p = at::dropout(*attended.memory, dropout_, is_training());
    next.memory = *state.memory + p;
    if (!pre_) next.memory = memory_norm(*next.memory);
  }
  if (wanted.rows == Rows::kNone) return next;
  const double p = is_training() ? dropout_ : 0.0;
  const Norm kind = pre_ ? Norm::kPre : Norm::kPost;
  const auto a = add_norm(rows(x), asks_all ? rows(attended.x) : attended.x,
                          pre_ ? ffn_norm : attention_norm, p, kind);
  const auto f = ffn(a.normed);
  if (pre_ && next_norm.norm.is_empty()) {
    next.x = a.stream + at::dropout(f, dropout_, is_training());
    return next;
  }
  const auto b = add_norm(a.stream, f, pre_ ? next_norm.norm : ffn_norm, p,
                          kind, next_norm.in_product);
  next.x = b.stream;
  next.normed = b.normed;
  return next;
}

}  // namespace luna::models
