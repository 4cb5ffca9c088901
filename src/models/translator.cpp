#include <luna/models/translator.h>

#include <ATen/ATen.h>
#include <luna/models/check_model.h>
#include <luna/nn/attention_registry.h>
#include <torch/nn/modules/container/modulelist.h>

#include <algorithm>
#include <cmath>

#include "models/attention_options.h"
#include "models/start.h"
#include "nn/decoding.h"

namespace luna::models {
namespace {

/// The config as the encoder takes it: without what the causal form of a
/// mechanism alone reads.
ModelConfig encoder_config(const ModelConfig& config, int64_t vocabulary) {
  check_model("model", config);
  TORCH_CHECK_VALUE(config.positions == "sinusoidal",
                    "Translator: positions: expected sinusoidal, got ",
                    config.positions);
  TORCH_CHECK_VALUE(config.embedding == "table",
                    "Translator: embedding: expected table, got ",
                    config.embedding);
  TORCH_CHECK_VALUE(config.local == 0,
                    "Translator: local: expected 0 (a decoder must not hear "
                    "what comes next), got ",
                    config.local);
  TORCH_CHECK_VALUE(vocabulary >= 1,
                    "Translator: vocabulary: expected 1 or more, got ",
                    vocabulary);
  TORCH_CHECK_VALUE(config.pooling == "mean",
                    "Translator: pooling: expected mean (it is not read), got ",
                    config.pooling);
  ModelConfig encoder = config;
  encoder.attention_options =
      without_causal_options(config.attention, config.attention_options);
  return encoder;
}

/// Of no packing 0.
int64_t sequences_in(const std::optional<data::Packing>& packed) {
  return packed ? packed->sequences() : 0;
}

void check_packing(const std::optional<data::Packing>& source,
                   const std::optional<data::Packing>& target) {
  TORCH_CHECK_VALUE(sequences_in(source) == sequences_in(target),
                    "Translator: expected as many packed sequences in the "
                    "target as in the source, ",
                    sequences_in(source), ", got ", sequences_in(target));
}

/// The embedding of the position of the token that is read now; counts it.
at::Tensor next_position(DecoderState& state) {
  if (state.place.defined()) {
    state.taken.index_fill_(1, state.place, true);
    return state.positions.index_select(0, state.place);
  }
  if (state.positions.size(0) <= state.length) {
    state.positions = sinusoid(2 * state.length, state.positions.size(1),
                               state.positions.options());
  }
  return state.positions[state.length++];
}

}  // namespace

void DecoderState::reorder(const at::Tensor& rows, bool same_source) {
  for (DecoderLayerState& layer : layers) layer.reorder(rows, same_source);
}

DecoderState DecoderState::fixed(int64_t rows, int64_t room) const {
  const auto like = positions.options();
  DecoderState made;
  made.place = at::zeros({1}, like.dtype(at::kLong));
  made.taken = at::zeros({1, room}, like.dtype(at::kBool));
  made.positions = sinusoid(room, positions.size(1), like);
  for (const DecoderLayerState& layer : layers) {
    made.layers.push_back(layer.fixed(rows, room, made.place, made.taken));
  }
  return made;
}

void DecoderState::take(const DecoderState& from, const at::Tensor& rows,
                        bool same_source) {
  TORCH_CHECK_VALUE(place.defined() && (from.place.defined() || !from.length),
                    "DecoderState::take: expected a fixed state, and one that "
                    "is fixed or has read nothing, got others");
  for (size_t i = 0; i < layers.size(); ++i) {
    layers[i].take(from.layers[i], rows, same_source);
  }
  if (&from == this) return;
  taken.zero_();
  if (!from.place.defined()) {
    place.zero_();
    return;
  }
  place.copy_(from.place);
  taken.narrow(1, 0, from.taken.size(1)).copy_(from.taken);
}

int64_t DecoderState::bytes() const {
  int64_t sum = 0;
  for (const DecoderLayerState& layer : layers) sum += layer.bytes();
  return sum;
}

Translator::Translator(const ModelConfig& config, int64_t vocabulary)
    : Encoder(encoder_config(config, vocabulary), vocabulary, /*longest=*/0),
      refuses_packed_(
          packing_refused(config.attention, config.attention_options)) {
  auto options = attention_options(config);
  const bool has_memory = nn::find_attention(config.attention).traits.memory;
  // As in the encoder: masks say which rows of the memory are used.
  if (has_memory) options["dynamic_projection"] = false;
  torch::nn::ModuleList stack;
  for (int64_t i = 0; i < config.layers; ++i) {
    decoder.emplace_back(EncoderLayerOptions(config, options));
    stack->push_back(decoder.back());
  }
  register_module("decoder", stack);
  if (config.norm == "pre") {
    decoder_norm = register_module(
        "decoder_norm",
        torch::nn::LayerNorm(torch::nn::LayerNormOptions({config.width})));
  }
  if (has_memory && !config.contextual_memory) {
    decoder_memory =
        register_parameter("decoder_memory", at::empty_like(memory).detach());
  }
  start_weights(*this, config);
}

std::optional<at::Tensor> Translator::memory_of(
    int64_t i, const std::optional<at::Tensor>& before, const Masks& masks,
    const data::Sequences& source) {
  if (!decoder_memory.defined()) return before;
  return start_memory(decoder_memory[i], source, masks);
}

Translator::Source Translator::read(const data::Sequences& sequences) {
  const Masks masks = make_masks(sequences);
  const LayerState state = run(sequences, masks, {});
  return {{state.x, masks}, state.memory};
}

NextNorm Translator::next_norm(size_t i) const {
  if (!decoder_norm) return {};
  return {.norm = i + 1 < decoder.size() ? decoder[i + 1]->self_norm
                                         : decoder_norm};
}

at::Tensor Translator::logits(const at::Tensor& x) {
  return at::linear(x, embedding->tokens->weight);
}

at::Tensor Translator::forward(const data::Batch& batch) {
  TORCH_CHECK_VALUE(batch.second,
                    "Translator: expected a batch with a target, got none");
  check_packing(batch.first.packed, batch.second->packed);
  const auto [source, memory] = read(batch.first);
  const auto& ids = batch.second->ids;
  const auto& packed = batch.second->packed;
  LayerState state{
      packed ? embedding->forward_packed(ids, *packed) : embedding(ids),
      memory};
  for (size_t i = 0; i < decoder.size(); ++i) {
    state.memory = memory_of(i, state.memory, source.masks, batch.first);
    state = decoder[i]->forward(state, source, packed, next_norm(i));
  }
  const at::Tensor x = state.normed.value_or(state.x);
  if (batch.second->full || batch.padded_labels) {
    return logits(x.flatten(0, 1));
  }
  const auto& lengths = batch.second->lengths;
  const auto real =
      at::arange(x.size(1), lengths.options()).lt(lengths.unsqueeze(1));
  return logits(x.index({real}));
}

DecoderState Translator::start(const data::Sequences& sequences) {
  TORCH_CHECK_VALUE(!sequences.packed,
                    "Translator::start: expected padded sequences, got packed "
                    "ones");
  auto [source, memory] = read(sequences);
  constexpr int64_t kPositions = 64;
  const auto& table = embedding->tokens->weight;
  DecoderState state;
  state.positions =
      sinusoid(kPositions, table.size(1), table.options().requires_grad(false));
  for (size_t i = 0; i < decoder.size(); ++i) {
    memory = memory_of(i, memory, source.masks, sequences);
    state.layers.push_back(decoder[i]->start(memory, source));
  }
  return state;
}

std::optional<at::Tensor> Translator::memory_attention(
    const data::Sequences& sequences) {
  auto [source, memory] = read(sequences);
  if (!memory) return std::nullopt;
  for (size_t i = 0; i + 1 < decoder.size(); ++i) {
    memory = memory_of(i, memory, source.masks, sequences);
    decoder[i]->start(memory, source);
  }
  memory = memory_of(std::ssize(decoder) - 1, memory, source.masks, sequences);
  const auto map = decoder.back()->memory_attention(*memory, source).mean(1);
  return source.masks.memory ? map * source.masks.memory->unsqueeze(-1) : map;
}

at::Tensor Translator::step(const at::Tensor& ids, DecoderState& state) {
  TORCH_CHECK_VALUE(ids.dim() == 1, "Translator::step: expected ids [batch], ",
                    "got ", ids.sizes());
  TORCH_CHECK_VALUE(!is_training() && !at::GradMode::is_enabled(),
                    "Translator::step: expected eval() and no gradients");
  const auto& table = embedding->tokens->weight;
  const auto width = table.size(1);
  LayerState token;
  token.x = at::add(next_position(state), at::embedding(table, ids),
                    std::sqrt(static_cast<double>(width)));
  for (size_t i = 0; i < decoder.size(); ++i) {
    token = decoder[i]->step(token, state.layers[i], next_norm(i));
  }
  if (state.place.defined()) state.place.add_(1);
  return logits(token.normed.value_or(token.x));
}

}  // namespace luna::models
