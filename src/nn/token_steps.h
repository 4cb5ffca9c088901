// Steps of the layers that stream, behind their projections.
#pragma once

#include <luna/nn/multi_head_attention.h>
#include <luna/nn/nested_causal_attention.h>

#include <vector>

#include "ops/token_linear.h"

namespace luna::nn {

/// What a projection makes of a token [B,D].
inline at::Tensor project_token(const torch::nn::Linear& projection,
                                const at::Tensor& x) {
  return ops::token_linear(x, projection->weight, projection->bias);
}
/// [B,D] -> [B,H,d].
inline at::Tensor token_by_heads(const at::Tensor& token, int64_t heads) {
  return token.unflatten(-1, at::IntArrayRef{heads, -1});
}

/// What reads the token of a step, in the order of `parts`: queries, keys,
/// values.
std::vector<torch::nn::Linear> head_projections(
    const MultiHeadAttentionImpl& layer);
/// Queries, packing keys, keys and, untied, values.
std::vector<torch::nn::Linear> nested_projections(
    const NestedCausalAttentionImpl& layer);

/// The layer's step(x, state); parts [B,D]: what these make of x.
at::Tensor step_heads(MultiHeadAttentionImpl& layer,
                      const std::vector<at::Tensor>& parts, StreamState& state);
at::Tensor step_nested(NestedCausalAttentionImpl& layer,
                       const std::vector<at::Tensor>& parts,
                       StreamState& state);

}  // namespace luna::nn
