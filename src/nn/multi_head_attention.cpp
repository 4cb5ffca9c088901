#include <ATen/ATen.h>
#include <luna/nn/attention_registry.h>
#include <luna/nn/multi_head_attention.h>

#include "nn/heads.h"
#include "nn/token_steps.h"
#include "ops/linear.h"

namespace luna::nn {
namespace {
constexpr const char* kName = "MultiHeadAttention";
}  // namespace

MultiHeadAttentionImpl::MultiHeadAttentionImpl(
    const MultiHeadAttentionOptions& options)
    : options_(options) {
  check_shape(kName, options.shape);
  TORCH_CHECK_VALUE(options.shape.local.taps == 0 || !options.shape.causal,
                    "MultiHeadAttention: expected no local sum in a causal "
                    "layer (half of it is the future), got ",
                    options.shape.local.taps, " taps");
  MultiHeadAttentionImpl::reset();
}

void MultiHeadAttentionImpl::reset() {
  const auto width = options_.shape.embed_dim;
  const auto num_heads = options_.shape.num_heads;
  q_proj = register_module("q_proj", torch::nn::Linear(width, width));
  k_proj = register_module("k_proj", torch::nn::Linear(width, width));
  v_proj = register_module("v_proj", torch::nn::Linear(width, width));
  out_proj = register_module("out_proj", torch::nn::Linear(width, width));
  heads_ = make_head_attention(
      options_.mechanism, {width / num_heads, num_heads}, options_.options);
  register_module("feature_map", as_module(heads_));
  if (options_.shape.local.taps > 0) {
    local = register_module("local", LocalSum(width, options_.shape.local));
  }
}

LayerOutput MultiHeadAttentionImpl::forward(const at::Tensor& x,
                                            const LayerInput& input) {
  const auto& shape = options_.shape;
  check_input(kName, shape.embed_dim, x, input);
  TORCH_CHECK_VALUE(!shape.causal || !input.context,
                    "MultiHeadAttention: expected no context in a causal "
                    "layer, got one");
  TORCH_CHECK_VALUE(!local || !input.context,
                    "MultiHeadAttention: expected no context in a layer with "
                    "a local sum, got one");
  const auto& keys = input.context ? *input.context : x;
  AttendOptions options;
  options.key_weight = input.key_mask;
  options.query_mask = input.query_mask;
  if (!input.query_mask && !input.context) options.query_mask = input.key_mask;
  options.cu_seqlens_q = input.cu_seqlens_q;
  options.cu_seqlens_k = key_starts(input);
  options.longest = input.longest;
  options.causal = shape.causal;
  if (input.state && !input.state->tensors.empty()) {
    options.state = input.state->tensors[0];
  }

  StreamState state;
  if (shape.causal && !at::GradMode::is_enabled()) {
    const bool given = input.state && input.state->prepared.defined();
    state.prepared = given ? input.state->prepared : heads_->prepare();
    if (state.prepared.defined()) options.prepared = state.prepared;
  }
  // Query, key, value in this order: so lie the gradients that the ops make.
  auto projected = input.context ? project(keys, {k_proj, v_proj})
                                 : project(x, head_projections(*this));
  if (input.context) {
    projected.insert(projected.begin(),
                     ops::linear(x, q_proj->weight, q_proj->bias));
  }
  const at::Tensor values = projected[2];
  for (auto& part : projected) part = split_heads(part, shape.num_heads);
  const auto [output, sums] =
      heads_->attend(projected[0], projected[1], projected[2], options);
  if (sums.defined()) state.tensors.push_back(sums);
  auto merged = merge_heads(output);
  if (local) {
    merged = merged + local(values, input.key_mask, input.cu_seqlens_q);
  }
  return {ops::linear(merged, out_proj->weight, out_proj->bias), input.memory,
          std::move(state)};
}

at::Tensor MultiHeadAttentionImpl::step(const at::Tensor& x,
                                        StreamState& state) {
  const auto& shape = options_.shape;
  TORCH_CHECK_VALUE(shape.causal,
                    "MultiHeadAttention: expected a causal layer to step, got "
                    "one that is not");
  TORCH_CHECK_VALUE(find_attention(options_.mechanism).traits.streams,
                    "MultiHeadAttention: expected a mechanism that streams, "
                    "got ",
                    options_.mechanism);
  check_step(kName, shape.embed_dim, x, state, 1);
  return step_heads(*this, project(x, head_projections(*this)), state);
}

std::vector<torch::nn::Linear> head_projections(
    const MultiHeadAttentionImpl& layer) {
  return {layer.q_proj, layer.k_proj, layer.v_proj};
}

at::Tensor step_heads(MultiHeadAttentionImpl& layer,
                      const std::vector<at::Tensor>& parts,
                      StreamState& state) {
  const auto heads = [&](const at::Tensor& token) {
    return token_by_heads(token, layer.options().shape.num_heads);
  };
  StepOptions options;
  if (state.prepared.defined()) options.prepared = state.prepared;
  const auto output =
      layer.heads()->step(heads(parts[0]), heads(parts[1]), heads(parts[2]),
                          state.tensors[0], options);
  return project_token(layer.out_proj, output.flatten(1));
}

}  // namespace luna::nn
