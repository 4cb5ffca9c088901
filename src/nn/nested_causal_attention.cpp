#include <ATen/ATen.h>
#include <luna/nn/nested_causal_attention.h>
#include <luna/ops/nested_causal_attention.h>

#include "nn/heads.h"
#include "nn/token_steps.h"
#include "ops/linear.h"

namespace luna::nn {
namespace {

constexpr const char* kName = "NestedCausalAttention";

// Where the tensors of a state are.
enum StateIndex : size_t { kKeys, kValues, kCount, kQuery, kRequired };
constexpr size_t kMask = kRequired;

std::optional<at::Tensor> state_mask(const StreamState& state) {
  if (state.tensors.size() <= kMask) return std::nullopt;
  return state.tensors[kMask];
}

void check_padding(const at::Tensor& mask) {
  TORCH_CHECK_TYPE(mask.scalar_type() == at::kBool,
                   "NestedCausalAttention: expected key_mask of bool, got ",
                   mask.scalar_type());
  if (mask.size(1) < 2) return;
  const auto starts = mask.slice(1, 1).logical_and(
      mask.slice(1, 0, mask.size(1) - 1).logical_not());
  const auto rows = starts.any(1);
  if (!rows.any().item<bool>()) return;
  TORCH_CHECK_VALUE(false,
                    "NestedCausalAttention: expected key_mask with padding on "
                    "the right only (positions count from the first token), "
                    "got a masked position before a token in row ",
                    rows.nonzero()[0].item<int64_t>());
}

void check_causal_input(const LayerInput& input, int64_t embed_dim) {
  TORCH_CHECK_VALUE(!input.context,
                    "NestedCausalAttention: expected no context "
                    "(NestedAttention takes one), got one");
  TORCH_CHECK_VALUE(input.memory.has_value() != input.state.has_value(),
                    "NestedCausalAttention: expected either a memory [B, l, ",
                    embed_dim, "] or a state, got ",
                    input.memory ? "both" : "neither");
  TORCH_CHECK_VALUE(!input.state || input.state->tensors.size() >= kRequired,
                    "NestedCausalAttention: expected the state that forward "
                    "returned, got ",
                    input.state ? input.state->tensors.size() : 0, " tensors");
  TORCH_CHECK_VALUE(!input.key_mask || !key_starts(input),
                    "NestedCausalAttention: expected key_mask or cu_seqlens, "
                    "got both");
  if (input.key_mask) check_padding(*input.key_mask);
}

}  // namespace

NestedCausalAttentionImpl::NestedCausalAttentionImpl(
    const LayerShape& shape, const NestedCausalAttentionOptions& options)
    : shape_(shape), options_(options) {
  config::check_options(kName, options);
  check_shape(kName, shape);
  NestedCausalAttentionImpl::reset();
}

void NestedCausalAttentionImpl::reset() {
  const auto linear = [this](const char* name) {
    return register_module(
        name, torch::nn::Linear(shape_.embed_dim, shape_.embed_dim));
  };
  pq_proj = linear("pq_proj");
  pc_proj = linear("pc_proj");
  q_proj = linear("q_proj");
  if (options_.tied) {
    c_proj = linear("c_proj");
  } else {
    k_proj = linear("k_proj");
    v_proj = linear("v_proj");
  }
  out_proj = linear("out_proj");
  reset_parameters();
}

void NestedCausalAttentionImpl::reset_parameters() {
  start_nested_projections(*this);
}

LayerOutput NestedCausalAttentionImpl::forward(const at::Tensor& x,
                                               const LayerInput& input) {
  const auto heads = shape_.num_heads;
  check_input(kName, shape_.embed_dim, x, input);
  check_causal_input(input, shape_.embed_dim);

  ops::NestedCausalAttentionOptions options;
  options.cu_seqlens = key_starts(input);
  options.activation = options_.activation;
  options.dropout_p = is_training() ? options_.dropout : 0.0;
  options.seed = draw_seed(x, options.dropout_p);
  at::Tensor packed_query;
  if (input.state) {
    const auto& tensors = input.state->tensors;
    options.key_state = tensors[kKeys];
    options.value_state = tensors[kValues];
    options.count = tensors[kCount];
    options.packed_mask = state_mask(*input.state);
    packed_query = tensors[kQuery];
  } else {
    auto memory = *input.memory;
    if (memory.dim() == 2) memory = memory.unsqueeze(0);
    packed_query =
        split_heads(ops::linear(memory, pq_proj->weight, pq_proj->bias), heads);
    options.packed_mask = input.memory_mask;
  }

  const auto projected = project(x, nested_projections(*this));
  auto key = split_heads(projected[2], heads);
  auto value = options_.tied ? key : split_heads(projected[3], heads);
  if (input.key_mask) {
    // Nothing of the padding enters the sums.
    const auto padding =
        input.key_mask->logical_not().unsqueeze(1).unsqueeze(-1);
    key = key.masked_fill(padding, 0.0);
    value = options_.tied ? key : value.masked_fill(padding, 0.0);
  }
  auto [output, key_state, value_state, count] = ops::nested_causal_attention(
      split_heads(projected[0], heads), split_heads(projected[1], heads), key,
      value, packed_query, options);
  if (input.key_mask) {
    count = input.key_mask->sum(1);
    if (options.count) count = count + *options.count;
  }

  StreamState state{{key_state, value_state, count,
                     packed_query.expand({count.size(0), -1, -1, -1})}};
  if (options.packed_mask) state.tensors.push_back(*options.packed_mask);
  return {ops::linear(merge_heads(output), out_proj->weight, out_proj->bias),
          input.memory, std::move(state)};
}

at::Tensor NestedCausalAttentionImpl::step(const at::Tensor& x,
                                           StreamState& state) {
  check_step(kName, shape_.embed_dim, x, state, kRequired);
  return step_nested(*this, project(x, nested_projections(*this)), state);
}

std::vector<torch::nn::Linear> nested_projections(
    const NestedCausalAttentionImpl& layer) {
  if (layer.options().tied) return {layer.q_proj, layer.pc_proj, layer.c_proj};
  return {layer.q_proj, layer.pc_proj, layer.k_proj, layer.v_proj};
}

at::Tensor step_nested(NestedCausalAttentionImpl& layer,
                       const std::vector<at::Tensor>& parts,
                       StreamState& state) {
  auto& tensors = state.tensors;
  const auto heads = [&](const at::Tensor& token) {
    return token_by_heads(token, tensors[kQuery].size(1));
  };
  ops::NestedCausalAttentionStepOptions options;
  options.packed_mask = state_mask(state);
  options.activation = layer.options().activation;
  // Tied, the last part is the keys and the values.
  const auto output = ops::nested_causal_attention_step(
      heads(parts[0]), heads(parts[1]), heads(parts[2]), heads(parts.back()),
      tensors[kQuery], tensors[kKeys], tensors[kValues], tensors[kCount],
      options);
  return project_token(layer.out_proj, output.flatten(1));
}

}  // namespace luna::nn
