#include "nn/decoding.h"

#include <ATen/ATen.h>
#include <luna/nn/attention_registry.h>
#include <luna/nn/multi_head_attention.h>
#include <luna/nn/nested_attention.h>
#include <luna/nn/nested_causal_attention.h>
#include <luna/ops/unpack_attention.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "nn/heads.h"
#include "nn/token_steps.h"
#include "ops/checks.h"
#include "ops/token_linear.h"

namespace luna::nn {
namespace {

/// One token's heads [B,H,1,d] of what a projection made of it [B,D].
at::Tensor token_heads(const at::Tensor& part, int64_t heads) {
  return split_heads(part.unsqueeze(1), heads);
}

at::Tensor one_token(const torch::nn::Linear& projection,
                     const at::Tensor& heads) {
  return project_token(projection, merge_heads(heads).squeeze(1));
}

MultiHeadAttentionImpl& as_multi_head(AttentionLayer& layer,
                                      const char* function) {
  auto* heads = dynamic_cast<MultiHeadAttentionImpl*>(&layer);
  TORCH_CHECK_TYPE(heads != nullptr, function,
                   ": expected a NestedAttention or a MultiHeadAttention, got "
                   "another layer");
  return *heads;
}

}  // namespace

std::vector<at::Tensor*> CrossState::rows() {
  std::vector<at::Tensor*> all;
  for (at::Tensor* tensor : {&keys, &values, &mask, &sums, &none}) {
    if (tensor->defined()) all.push_back(tensor);
  }
  return all;
}

CrossState start_cross(AttentionLayer& layer, const LayerInput& input) {
  TORCH_CHECK_VALUE(input.context, "start_cross: expected a context, got none");
  CrossState state;
  if (auto* nested = dynamic_cast<NestedAttentionImpl*>(&layer)) {
    TORCH_CHECK_VALUE(!nested->options().dynamic_projection,
                      "start_cross: expected a layer whose memory_mask says "
                      "which rows are used, got dynamic_projection");
    // The memory's new rows do not depend on the query.
    const auto nothing =
        at::zeros({input.context->size(0), 1, input.context->size(2)},
                  input.context->options());
    const auto packed = *nested->forward(nothing, input).memory;
    const auto& options = nested->options();
    auto keys = options.tied ? nested->c_proj(packed) : nested->k_proj(packed);
    auto values = options.tied ? keys : nested->v_proj(packed);
    state.keys = split_heads(keys, nested->num_heads());
    state.values = split_heads(values, nested->num_heads());
    if (input.memory_mask) {
      // As the numbers that the kernels read, once.
      state.mask = input.memory_mask->to(ops::compute_dtype(packed));
    }
    state.memory = packed;
    return state;
  }
  auto& multi = as_multi_head(layer, "start_cross");
  const int64_t heads = multi.options().shape.num_heads;
  const auto keys = split_heads(multi.k_proj(*input.context), heads);
  const auto values = split_heads(multi.v_proj(*input.context), heads);
  if (!find_attention(multi.options().mechanism).traits.streams) {
    state.keys = keys;
    state.values = values;
    if (input.key_mask) state.mask = *input.key_mask;
    return state;
  }
  state.prepared = multi.heads()->prepare();
  AttendOptions options;
  options.key_weight = input.key_mask;
  if (state.prepared.defined()) options.prepared = state.prepared;
  // The sums do not depend on the query.
  state.sums = std::get<1>(
      multi.heads()->attend(keys.slice(2, 0, 1), keys, values, options));
  state.none = at::zeros({keys.size(0)}, state.sums.options());
  return state;
}

at::Tensor step_cross(AttentionLayer& layer, const at::Tensor& x,
                      const CrossState& state) {
  if (auto* nested = dynamic_cast<NestedAttentionImpl*>(&layer)) {
    ops::UnpackAttentionOptions options;
    if (state.mask.defined()) options.key_weight = state.mask;
    return one_token(
        nested->out_proj,
        ops::unpack_attention(
            token_heads(project_token(nested->q_proj, x), nested->num_heads()),
            state.keys, state.values, options));
  }
  auto& multi = as_multi_head(layer, "step_cross");
  const int64_t heads = multi.options().shape.num_heads;
  if (state.sums.defined()) {
    StepOptions options;
    options.key_weight = state.none;
    if (state.prepared.defined()) options.prepared = state.prepared;
    const auto query = token_by_heads(project_token(multi.q_proj, x), heads);
    // Of a key and a value that do not enter the sums, any will do.
    return project_token(multi.out_proj,
                         multi.heads()
                             ->step(query, query, query, state.sums, options)
                             .flatten(1));
  }
  AttendOptions options;
  if (state.mask.defined()) options.key_weight = state.mask;
  const auto [output, sums] =
      multi.heads()->attend(token_heads(project_token(multi.q_proj, x), heads),
                            state.keys, state.values, options);
  return one_token(multi.out_proj, output);
}

at::Tensor pack_map(AttentionLayer& layer, const LayerInput& input) {
  auto* nested = dynamic_cast<NestedAttentionImpl*>(&layer);
  TORCH_CHECK_TYPE(nested != nullptr,
                   "pack_map: expected a NestedAttention, got another layer");
  TORCH_CHECK_VALUE(input.context && input.memory,
                    "pack_map: expected a context and a memory");
  const auto& options = nested->options();
  auto memory = *input.memory;
  if (memory.dim() == 2) memory = memory.unsqueeze(0);
  const auto query = split_heads(nested->pq_proj(memory), options.pack_heads);
  const auto key = split_heads(options.tied ? nested->pc_proj(*input.context)
                                            : nested->pk_proj(*input.context),
                               options.pack_heads);
  auto scores = at::matmul(query, key.transpose(-1, -2)) /
                std::sqrt(static_cast<double>(key.size(-1)));
  if (input.key_mask) {
    const auto real = input.key_mask->unsqueeze(1).unsqueeze(1);
    scores = scores.masked_fill(real.logical_not(),
                                -std::numeric_limits<double>::infinity());
  }
  return scores.softmax(-1);
}

std::vector<at::Tensor> TokenProjections::operator()(
    const at::Tensor& x) const {
  return ops::token_linear(x, weight, bias).split(weight.size(1), -1);
}

TokenProjections join_projections(AttentionLayer& layer) {
  std::vector<at::Tensor> weights, biases;
  auto* nested = dynamic_cast<NestedCausalAttentionImpl*>(&layer);
  for (const auto& projection :
       nested != nullptr
           ? nested_projections(*nested)
           : head_projections(as_multi_head(layer, "join_projections"))) {
    weights.push_back(projection->weight);
    biases.push_back(projection->bias);
  }
  return {at::cat(weights), at::cat(biases)};
}

at::Tensor step_projected(AttentionLayer& layer,
                          const std::vector<at::Tensor>& parts,
                          StreamState& state) {
  if (auto* nested = dynamic_cast<NestedCausalAttentionImpl*>(&layer)) {
    return step_nested(*nested, parts, state);
  }
  return step_heads(as_multi_head(layer, "step_projected"), parts, state);
}

void KeyValueCache::reorder(const at::Tensor& rows) {
  for (at::Tensor* tensor : {&keys, &values}) {
    auto sizes = tensor->sizes().vec();
    sizes[0] = rows.size(0);
    auto moved = at::empty(sizes, tensor->options());
    moved.narrow(2, 0, length)
        .copy_(tensor->narrow(2, 0, length).index_select(0, rows));
    *tensor = std::move(moved);
  }
}

int64_t KeyValueCache::bytes() const {
  return keys.size(2) == 0
             ? 0
             : static_cast<int64_t>(keys.nbytes() + values.nbytes()) /
                   keys.size(2) * length;
}

at::Tensor step_cached(AttentionLayer& layer,
                       const std::vector<at::Tensor>& parts,
                       KeyValueCache& cache) {
  auto& multi = as_multi_head(layer, "step_cached");
  const int64_t heads = multi.options().shape.num_heads;
  AttendOptions options;
  if (cache.place.defined()) options.key_weight = cache.taken;
  const auto put = [&](at::Tensor& tensor, const at::Tensor& token) {
    if (cache.place.defined()) return tensor.index_copy_(2, cache.place, token);
    if (tensor.size(2) == cache.length) {
      auto sizes = tensor.sizes().vec();
      sizes[2] = std::max<int64_t>(64, 2 * cache.length);
      auto larger = at::empty(sizes, tensor.options());
      larger.narrow(2, 0, cache.length).copy_(tensor);
      tensor = std::move(larger);
    }
    tensor.narrow(2, cache.length, 1).copy_(token);
    return tensor.narrow(2, 0, cache.length + 1);
  };
  const auto keys = put(cache.keys, token_heads(parts[1], heads));
  const auto values = put(cache.values, token_heads(parts[2], heads));
  if (!cache.place.defined()) ++cache.length;
  const auto [output, sums] = multi.heads()->attend(
      token_heads(parts[0], heads), keys, values, options);
  return one_token(multi.out_proj, output);
}

}  // namespace luna::nn
