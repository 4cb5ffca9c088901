#include <luna/models/decoder_layer.h>

#include <ATen/ATen.h>
#include <luna/nn/attention_registry.h>
#include <luna/nn/nested_attention.h>
#include <luna/nn/nested_causal_attention.h>

#include <algorithm>

#include "models/attention_options.h"
#include "models/fused.h"
#include "nn/decoding.h"

namespace luna::models {
namespace {

void check_mechanism(const nn::AttentionInfo& info) {
  TORCH_CHECK_VALUE(info.traits.causal && info.traits.cross,
                    "DecoderLayer: expected a mechanism that can be causal and "
                    "attend to another sequence, got ",
                    info.name, ", which cannot");
}

}  // namespace

void DecoderLayerState::reorder(const at::Tensor& rows, bool same_source) {
  const auto take = [&](at::Tensor& tensor) {
    if (tensor.defined()) tensor = tensor.index_select(0, rows);
  };
  for (at::Tensor& tensor : stream.tensors) take(tensor);
  if (cache) cache->reorder(rows);
  if (same_source) return;
  auto moved = std::make_shared<nn::CrossState>(*source);
  for (at::Tensor* tensor : moved->rows()) take(*tensor);
  source = std::move(moved);
}

DecoderLayerState DecoderLayerState::fixed(int64_t rows, int64_t room,
                                           const at::Tensor& place,
                                           const at::Tensor& taken) const {
  const auto sized = [](const at::Tensor& tensor, int64_t dim, int64_t size) {
    auto sizes = tensor.sizes().vec();
    sizes[dim] = size;
    return at::zeros(sizes, tensor.options());
  };
  DecoderLayerState made;
  for (const at::Tensor& tensor : stream.tensors) {
    made.stream.tensors.push_back(sized(tensor, 0, rows));
  }
  if (stream.prepared.defined()) {
    made.stream.prepared = at::zeros_like(stream.prepared);
  }
  if (cache) {
    const auto empty = [&](const at::Tensor& tensor) {
      return sized(sized(tensor, 2, room), 0, rows);
    };
    made.cache = std::make_shared<nn::KeyValueCache>(
        nn::KeyValueCache{.keys = empty(cache->keys),
                          .values = empty(cache->values),
                          .place = place,
                          .taken = taken});
  }
  made.own = std::make_shared<nn::TokenProjections>(nn::TokenProjections{
      at::zeros_like(own->weight), at::zeros_like(own->bias)});
  made.source = std::make_shared<nn::CrossState>(*source);
  for (at::Tensor* tensor : made.source->rows()) {
    *tensor = sized(*tensor, 0, rows);
  }
  if (source->prepared.defined()) {
    made.source->prepared = at::zeros_like(source->prepared);
  }
  return made;
}

void DecoderLayerState::take(const DecoderLayerState& from,
                             const at::Tensor& rows, bool same_source) {
  const auto copy = [&](const at::Tensor& to, const at::Tensor& other) {
    to.copy_(other.index_select(0, rows));
  };
  for (size_t i = 0; i < stream.tensors.size(); ++i) {
    copy(stream.tensors[i], from.stream.tensors[i]);
  }
  if (cache) {
    const auto put = [&](const at::Tensor& to, const at::Tensor& other) {
      // Behind what is real there must be numbers: 0 times NaN is NaN.
      if (!to.is_same(other)) to.zero_();
      copy(to.narrow(2, 0, other.size(2)), other);
    };
    put(cache->keys, from.cache->keys);
    put(cache->values, from.cache->values);
  }
  if (same_source) return;
  if (stream.prepared.defined()) stream.prepared.copy_(from.stream.prepared);
  own->weight.copy_(from.own->weight);
  own->bias.copy_(from.own->bias);
  const auto to = source->rows(), others = from.source->rows();
  for (size_t i = 0; i < to.size(); ++i) copy(*to[i], *others[i]);
  if (source->prepared.defined()) {
    source->prepared.copy_(from.source->prepared);
  }
}

int64_t DecoderLayerState::bytes() const {
  int64_t sum = 0;
  const auto add = [&](const at::Tensor& tensor) {
    if (tensor.defined()) sum += static_cast<int64_t>(tensor.nbytes());
  };
  for (const at::Tensor& tensor : stream.tensors) add(tensor);
  for (const auto& tensor : {source->keys, source->values, source->sums}) {
    add(tensor);
  }
  return sum + (cache ? cache->bytes() : 0);
}

DecoderLayerImpl::DecoderLayerImpl(const EncoderLayerOptions& options)
    : pre_(options.pre_norm), heads_(options.heads), dropout_(options.dropout) {
  const auto norm = [&](const char* name) {
    return register_module(
        name, torch::nn::LayerNorm(torch::nn::LayerNormOptions({options.width})
                                       .eps(options.norm_eps)));
  };
  const auto& info = nn::find_attention(options.attention);
  check_mechanism(info);
  streams_ = info.traits.streams;
  auto causal = options.attention_options;
  const bool same = options.source_attention == "same";
  const auto cross =
      same ? without_causal_options(info.name, causal) : options.source_options;
  if (info.traits.memory) {
    causal = read_by<nn::NestedCausalAttentionOptions>(causal);
  }
  self_attention_ = nn::make_attention_layer(
      info.name, {options.width, options.heads, /*causal=*/true}, causal);
  register_module("self_attention", nn::as_module(self_attention_));
  self_norm = norm("self_norm");
  cross_attention_ =
      nn::make_attention_layer(same ? info.name : options.source_attention,
                               {options.width, options.heads}, cross);
  register_module("cross_attention", nn::as_module(cross_attention_));
  cross_norm = norm("cross_norm");
  if (info.traits.memory) memory_norm = norm("memory_norm");
  ffn = register_module("ffn", FeedForward(options));
  ffn_norm = norm("ffn_norm");
}

std::optional<at::Tensor> DecoderLayerImpl::next_memory(
    const at::Tensor& memory, const at::Tensor& packed) {
  const auto sum = memory + at::dropout(packed, dropout_, is_training());
  return pre_ ? sum : memory_norm(sum);
}

nn::LayerInput DecoderLayerImpl::cross_input(
    const std::optional<at::Tensor>& memory, const DecoderSource& source) {
  nn::LayerInput input;
  input.context = source.context;
  input.key_mask = source.masks.x;
  if (memory) {
    input.memory = pre_ ? memory_norm(*memory) : *memory;
    input.memory_mask = source.masks.memory;
  }
  return input;
}

LayerState DecoderLayerImpl::forward(const LayerState& state,
                                     const DecoderSource& source,
                                     const std::optional<data::Packing>& packed,
                                     const NextNorm& next_norm) {
  const double p = is_training() ? dropout_ : 0.0;
  at::Tensor x = state.x, normed = state.normed.value_or(x);
  if (pre_ && !state.normed) std::tie(x, normed) = normed_rows(x, self_norm);
  nn::LayerInput own;
  own.memory = state.memory;
  if (state.memory) own.memory_mask = source.masks.memory;
  if (packed) {
    own.cu_seqlens_q = packed->starts;
    own.longest = packed->longest;
  }
  const auto attended = self_attention_->forward(normed, own);
  const Norm kind = pre_ ? Norm::kPre : Norm::kPost;
  const auto a =
      add_norm(x, attended.x, pre_ ? cross_norm : self_norm, p, kind);

  nn::LayerInput other = cross_input(state.memory, source);
  if (packed) {
    other.cu_seqlens_q = packed->starts;
    other.cu_seqlens_k = source.masks.packed->starts;
    other.longest = std::max(packed->longest, source.masks.packed->longest);
  }
  const auto crossed = cross_attention_->forward(a.normed, other);
  const auto b =
      add_norm(a.stream, crossed.x, pre_ ? ffn_norm : cross_norm, p, kind);
  LayerState next = feed(b.stream, b.normed, next_norm);
  next.memory = state.memory;
  if (state.memory) next.memory = next_memory(*state.memory, *crossed.memory);
  return next;
}

LayerState DecoderLayerImpl::feed(const at::Tensor& stream,
                                  const at::Tensor& normed,
                                  const NextNorm& next) {
  const double p = is_training() ? dropout_ : 0.0;
  const auto f = ffn(normed);
  if (pre_ && next.norm.is_empty()) {
    return {.x = stream + at::dropout(f, p, p > 0)};
  }
  const auto added = add_norm(stream, f, pre_ ? next.norm : ffn_norm, p,
                              pre_ ? Norm::kPre : Norm::kPost, next.in_product);
  return {.x = added.stream, .normed = added.normed};
}

DecoderLayerState DecoderLayerImpl::start(std::optional<at::Tensor>& memory,
                                          const DecoderSource& source) {
  DecoderLayerState state;
  const auto batch = source.context.size(0), width = source.context.size(2);
  if (streams_) {
    nn::LayerInput own;
    own.memory = memory;
    if (memory) own.memory_mask = source.masks.memory;
    state.stream =
        self_attention_
            ->forward(at::empty({batch, 0, width}, source.context.options()),
                      own)
            .state;
  } else {
    const auto none =
        at::empty({batch, heads_, 0, width / heads_}, source.context.options());
    state.cache =
        std::make_shared<nn::KeyValueCache>(nn::KeyValueCache{none, none});
  }
  state.own = std::make_shared<nn::TokenProjections>(
      nn::join_projections(*self_attention_));
  state.source = std::make_shared<nn::CrossState>(
      nn::start_cross(*cross_attention_, cross_input(memory, source)));
  if (memory) {
    memory = next_memory(*memory, *state.source->memory);
    state.source->memory.reset();  // its keys and values are what is read
  }
  return state;
}

at::Tensor DecoderLayerImpl::memory_attention(const at::Tensor& memory,
                                              const DecoderSource& source) {
  return nn::pack_map(*cross_attention_, cross_input(memory, source));
}

LayerState DecoderLayerImpl::step(const LayerState& token,
                                  DecoderLayerState& state,
                                  const NextNorm& next) {
  const Norm kind = pre_ ? Norm::kPre : Norm::kPost;
  at::Tensor normed = token.normed.value_or(token.x);
  if (pre_ && !token.normed) normed = normed_rows(token.x, self_norm).second;
  const auto parts = (*state.own)(normed);
  const auto a = add_norm(
      token.x,
      streams_ ? nn::step_projected(*self_attention_, parts, state.stream)
               : nn::step_cached(*self_attention_, parts, *state.cache),
      pre_ ? cross_norm : self_norm, 0, kind);
  const auto b = add_norm(
      a.stream, nn::step_cross(*cross_attention_, a.normed, *state.source),
      pre_ ? ffn_norm : cross_norm, 0, kind);
  return feed(b.stream, b.normed, next);
}

}  // namespace luna::models
