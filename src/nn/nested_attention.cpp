#include <ATen/ATen.h>
#include <luna/nn/nested_attention.h>
#include <luna/ops/pack_attention.h>
#include <luna/ops/unpack_attention.h>

#include "nn/heads.h"
#include "ops/linear.h"

namespace luna::nn {
namespace {
constexpr const char* kName = "NestedAttention";
}  // namespace

NestedAttentionImpl::NestedAttentionImpl(LayerShape shape,
                                         const NestedAttentionOptions& options)
    : shape_(shape), options_(options) {
  config::check_options(kName, options);
  TORCH_CHECK_VALUE(!shape.causal,
                    "NestedAttention: expected a layer that is not causal "
                    "(NestedCausalAttention is), got causal = true");
  if (options_.pack_heads == 0) options_.pack_heads = shape.num_heads;
  check_shape(kName, shape);
  check_shape(kName, {shape.embed_dim, options_.pack_heads});
  NestedAttentionImpl::reset();
}

void NestedAttentionImpl::reset() {
  const auto linear = [this](const char* name) {
    return register_module(
        name, torch::nn::Linear(shape_.embed_dim, shape_.embed_dim));
  };
  pq_proj = linear("pq_proj");
  if (options_.tied) {
    pc_proj = linear("pc_proj");
  } else {
    pk_proj = linear("pk_proj");
    pv_proj = linear("pv_proj");
  }
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

void NestedAttentionImpl::reset_parameters() {
  start_nested_projections(*this);
}

LayerOutput NestedAttentionImpl::forward(const at::Tensor& x,
                                         const LayerInput& input) {
  check_input(kName, shape_.embed_dim, x, input);
  TORCH_CHECK_VALUE(input.memory, "NestedAttention: expected a memory [B, l, ",
                    shape_.embed_dim, "], got none");
  TORCH_CHECK_VALUE(!input.state,
                    "NestedAttention: expected no state (only the causal layer "
                    "streams), got one");
  const auto& context = input.context ? *input.context : x;
  auto mask = input.memory_mask;
  if (options_.dynamic_projection) {
    const auto used = dynamic_memory_mask(context, input.memory->size(-2),
                                          input.key_mask, key_starts(input));
    if (used) mask = mask ? mask->logical_and(*used) : *used;
  }
  // What reads one sequence is one product.
  std::vector<torch::nn::Linear> of_context;
  if (options_.tied) {
    of_context = {pc_proj};
  } else {
    of_context = {pk_proj, pv_proj};
  }
  if (!input.context) of_context.push_back(q_proj);
  const auto projected = project(context, of_context);
  const auto packed =
      pack(projected.front(), projected[options_.tied ? 0 : 1], input);
  if (x.size(1) == 0) return {x, packed};  // nobody asks: nothing to unpack
  const auto query = input.context
                         ? ops::linear(x, q_proj->weight, q_proj->bias)
                         : projected.back();
  return {unpack(query, packed, mask, input), packed};
}

at::Tensor NestedAttentionImpl::pack(const at::Tensor& key,
                                     const at::Tensor& value,
                                     const LayerInput& input) {
  const auto heads = options_.pack_heads;
  auto memory = *input.memory;
  if (memory.dim() == 2) memory = memory.unsqueeze(0);
  ops::PackAttentionOptions options;
  options.key_weight = input.key_mask;
  options.cu_seqlens_k = key_starts(input);
  options.dropout_p = is_training() ? options_.dropout : 0.0;
  options.seed = draw_seed(key, options.dropout_p);
  return merge_heads(ops::pack_attention(
      split_heads(ops::linear(memory, pq_proj->weight, pq_proj->bias), heads),
      split_heads(key, heads), split_heads(value, heads), options));
}

at::Tensor NestedAttentionImpl::unpack(
    const at::Tensor& query, const at::Tensor& packed,
    const std::optional<at::Tensor>& memory_mask, const LayerInput& input) {
  const auto heads = shape_.num_heads;
  ops::UnpackAttentionOptions options;
  options.key_weight = memory_mask;
  options.cu_seqlens_q = input.cu_seqlens_q;
  options.dropout_p = is_training() ? options_.dropout : 0.0;
  options.seed = draw_seed(query, options.dropout_p);
  const auto of_packed = options_.tied ? project(packed, {c_proj})
                                       : project(packed, {k_proj, v_proj});
  const auto output = merge_heads(ops::unpack_attention(
      split_heads(query, heads), split_heads(of_packed.front(), heads),
      split_heads(of_packed.back(), heads), options));
  return ops::linear(output, out_proj->weight, out_proj->bias);
}

std::optional<at::Tensor> dynamic_memory_mask(
    const at::Tensor& keys, int64_t memory_length,
    const std::optional<at::Tensor>& key_mask,
    const std::optional<at::Tensor>& cu_seqlens) {
  at::Tensor lengths;
  if (cu_seqlens && key_mask) {
    const auto before =
        at::constant_pad_nd(key_mask->gt(0)[0].cumsum(0), {1, 0});
    lengths = before.index({*cu_seqlens}).diff();
  } else if (cu_seqlens) {
    lengths = cu_seqlens->diff();
  } else if (key_mask) {
    lengths = key_mask->gt(0).sum(1);
  } else if (keys.size(1) >= memory_length) {
    return std::nullopt;
  } else {
    lengths = at::full({keys.size(0)}, keys.size(1),
                       at::dtype(at::kLong).device(keys.device()));
  }
  const auto rows = at::arange(memory_length, lengths.options());
  return rows.unsqueeze(0).lt(lengths.unsqueeze(1));
}

}  // namespace luna::nn
