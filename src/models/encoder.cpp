#include <luna/models/encoder.h>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <luna/nn/attention_registry.h>
#include <torch/nn/modules/container/modulelist.h>

#include <algorithm>

#include "models/attention_options.h"
#include "ops/take_rows.h"

namespace luna::models {
namespace {

/// Whether the host knows, without asking a device, that nothing is padded.
bool is_full(const data::Sequences& sequences) {
  if (sequences.full) return true;
  return sequences.lengths.is_cpu() &&
         sequences.lengths.ge(sequences.ids.size(1)).all().item<bool>();
}

/// [B,n]: the first lengths[i] of row i.
at::Tensor first_rows(const at::Tensor& lengths, int64_t n) {
  return at::arange(n, lengths.options()).lt(lengths.unsqueeze(1));
}

/// The mean of the rows of x [B,n,D] that the mask [B,n] has, 0 of none.
at::Tensor mean_rows(const at::Tensor& x,
                     const std::optional<at::Tensor>& mask) {
  if (!mask) return x.mean(1);
  return (x * mask->unsqueeze(-1)).sum(1) / mask->sum(1, true).clamp_min(1);
}

/// The same of x [1,T,D], by sequence without the filler: [B,D]. As a product
/// of float32, which adds in an order that does not change.
at::Tensor mean_rows(const at::Tensor& x, const data::Packing& packed) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(
      c10::autocast_dispatch_keyset);
  const auto rows = at::promote_types(x.scalar_type(), at::kFloat);
  const auto samples = packed.samples();
  const auto edge = [&](int64_t first) {
    return packed.starts.narrow(0, first, samples).unsqueeze(1);
  };
  const auto token = at::arange(x.size(1), packed.starts.options());
  const auto begin = edge(0), end = edge(1);
  const auto own = token.ge(begin).logical_and(token.lt(end));
  const auto weight = own.to(rows) / (end - begin).clamp_min(1).to(rows);
  return at::matmul(weight, x[0].to(rows));
}

/// What the mask [B,n] has, one after the other in as much room as there is.
std::pair<KeptRows, data::Packing> keep_rows(const at::Tensor& mask,
                                             const data::Room& room) {
  const auto count = mask.flatten().cumsum(0);  // up to and with each
  const auto number = [&](int64_t value) {
    return at::full({1}, value, count.options());
  };
  // The first that makes it t + 1; the filler may come from anywhere.
  const auto wanted = at::arange(1, room.tokens + 1, count.options());
  const auto from =
      at::searchsorted(count, wanted).clamp_max(count.size(0) - 1);
  const auto lost = mask.flatten().logical_not().logical_or(
      count.gt(room.tokens));  // the trainer's rooms are large enough
  const auto ends = count.view(mask.sizes()).select(1, mask.size(1) - 1);
  data::Packing packed;
  packed.starts =
      at::cat({number(0), ends.clamp_max(room.tokens), number(room.tokens)});
  packed.longest = std::max(mask.size(1), room.filler);
  return {{from, (count - 1).masked_fill(lost, -1)}, packed};
}

int64_t position_rows(const ModelConfig& config, int64_t longest) {
  if (config.positions != "learned") return 0;
  if (config.max_positions == 0) {
    TORCH_CHECK_VALUE(longest > 0,
                      "model.max_positions: expected a number, or the longest "
                      "sequence to be known, got 0 for both");
    return longest + 2;
  }
  const int64_t needed = longest + (config.pooling == "cls" ? 1 : 0);
  TORCH_CHECK_VALUE(config.max_positions >= needed,
                    "model.max_positions: expected at least ", needed,
                    " (the longest sequence, [CLS] counted), got ",
                    config.max_positions);
  return config.max_positions;
}

}  // namespace

Encoder::Encoder(const ModelConfig& config, int64_t rows, int64_t longest,
                 int64_t columns)
    : config_(config) {
  const auto& info = nn::find_attention(config.attention);
  const auto layer_norm = [&](const char* name) {
    return register_module(
        name,
        torch::nn::LayerNorm(torch::nn::LayerNormOptions({config.width})));
  };
  embedding = register_module(
      "embedding", Embedding(config, rows, position_rows(config, longest)));
  const bool pre = config.norm == "pre";
  if (info.traits.memory) {
    std::vector<int64_t> sizes{config.memory_length, config.width};
    if (!config.contextual_memory) sizes.insert(sizes.begin(), config.layers);
    memory = register_parameter("memory", at::empty(sizes));
    if (config.embedding_norm) memory_norm = layer_norm("memory_norm");
    if (pre && config.pooling == "memory") {
      last_memory_norm = layer_norm("last_memory_norm");
    }
  }
  auto options = attention_options(config);
  if (info.traits.memory) dynamic_memory_ = take_dynamic_projection(options);
  torch::nn::ModuleList stack;
  EncoderLayerOptions layer(config, options);
  if (config.local > 0 && config.local_shape == "square") {
    TORCH_CHECK_VALUE(columns > 0,
                      "model.local_shape = square: expected a task of grey "
                      "pictures, got another");
    layer.local.columns = columns;
  }
  for (int64_t i = 0; i < config.layers; ++i) {
    layers.emplace_back(layer);
    stack->push_back(layers.back());
  }
  register_module("layers", stack);
  if (pre && config.pooling != "memory") norm = layer_norm("norm");
}

data::BatchOptions Encoder::batch_options() const {
  data::BatchOptions options;
  options.cls = config_.pooling == "cls";
  return options;
}

int64_t Encoder::memory_rows(int64_t length) const {
  return dynamic_memory_ ? std::min(config_.memory_length, length)
                         : config_.memory_length;
}

std::string Encoder::refuses_packed() const {
  if (config_.local > 0 &&
      (config_.local_shape == "square" || config_.black == "padding")) {
    return "a local sum over pictures, whose neighbours would be others";
  }
  return packing_refused(config_.attention, config_.attention_options);
}

Masks Encoder::make_masks(const data::Sequences& sequences) const {
  if (sequences.packed) {
    TORCH_CHECK_VALUE(config_.black == "pixel",
                      "model.black = padding: expected pictures side by side, "
                      "got packed ones");
    Masks masks;
    masks.packed = sequences.packed;
    if (memory.defined() && dynamic_memory_) {
      masks.memory = first_rows(masks.packed->starts.diff(),
                                memory_rows(masks.packed->longest));
    }
    return masks;
  }
  Masks masks;
  if (!is_full(sequences)) {
    const auto& lengths = sequences.lengths;
    const auto length = sequences.ids.size(1);
    masks.x = first_rows(lengths, length);
    if (memory.defined() && dynamic_memory_) {
      masks.memory = first_rows(lengths, memory_rows(length));
    }
  }
  if (config_.black == "padding") {
    const auto seen = sequences.ids.ne(0);
    masks.x = masks.x ? masks.x->logical_and(seen) : seen;
    if (sequences.room) {
      TORCH_CHECK_VALUE(sequences.full && config_.local == 0,
                        "room: expected pictures of one size and no local "
                        "sum, got others");
      std::tie(masks.kept, masks.packed) = keep_rows(seen, *sequences.room);
      masks.x.reset();
    }
  }
  return masks;
}

at::Tensor Encoder::embedded(const data::Sequences& sequences,
                             const Masks& masks) {
  if (sequences.packed) {
    return embedding->forward_packed(sequences.ids, *sequences.packed);
  }
  if (!masks.kept) return embedding(sequences.ids, masks.x);
  const auto rows = embedding(sequences.ids, std::nullopt).flatten(0, 1);
  return ops::take_rows(rows, masks.kept->from, masks.kept->to).unsqueeze(0);
}

at::Tensor Encoder::start_memory(const at::Tensor& parameter,
                                 const data::Sequences& sequences,
                                 const Masks& masks) {
  const int64_t batch =
      masks.packed ? masks.packed->sequences() : sequences.ids.size(0);
  const int64_t rows = memory_rows(sequences.packed ? sequences.packed->longest
                                                    : sequences.ids.size(1));
  auto start = embedding->add_sinusoid(parameter.narrow(0, 0, rows));
  if (memory_norm) start = memory_norm(start);
  if (is_training() && config_.dropout > 0) {
    start = at::dropout(start.expand({batch, rows, config_.width}),
                        config_.dropout, true);
  }
  return masks.memory ? start * masks.memory->unsqueeze(-1) : start;
}

LayerState Encoder::run(const data::Sequences& sequences, const Masks& masks,
                        Wanted wanted) {
  LayerState state{embedded(sequences, masks)};
  const bool contextual = config_.contextual_memory;
  if (memory.defined() && contextual) {
    state.memory = start_memory(memory, sequences, masks);
  }
  for (size_t i = 0; i < layers.size(); ++i) {
    if (memory.defined() && !contextual) {
      state.memory =
          start_memory(memory[static_cast<int64_t>(i)], sequences, masks);
    }
    const bool last = i + 1 == layers.size();
    NextNorm next;
    if (config_.norm == "pre" && !last)
      next.norm = layers[i + 1]->attention_norm;
    if (last) next = {norm, /*in_product=*/false};
    state = layers[i](state, masks, last ? wanted : Wanted{}, next);
  }
  if (norm && wanted.rows != Rows::kNone) {
    state.x = state.normed ? *state.normed : norm(state.x);
  }
  if (last_memory_norm && wanted.memory) {
    state.memory = last_memory_norm(*state.memory);
  }
  return state;
}

LayerState Encoder::encode(const data::Sequences& sequences) {
  return run(sequences, make_masks(sequences), {});
}

at::Tensor Encoder::pool(const data::Sequences& sequences) {
  const auto masks = make_masks(sequences);
  if (config_.pooling == "memory") {
    const auto state = run(sequences, masks, {Rows::kNone, true});
    return mean_rows(*state.memory, masks.memory)
        .narrow(0, 0, sequences.lengths.size(0));
  }
  if (config_.pooling == "cls") {
    return run(sequences, masks, {Rows::kFirst, false}).x.flatten(0, 1);
  }
  const auto x = run(sequences, masks, {Rows::kAll, false}).x;
  return masks.packed ? mean_rows(x, *masks.packed) : mean_rows(x, masks.x);
}

}  // namespace luna::models
