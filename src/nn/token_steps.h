// Steps of the layers that stream, behind their projections.
#pragma once

#include <luna/nn/multi_head_attention.h>
#include <luna/nn/nested_causal_attention.h>

#include <vector>

namespace luna::nn {

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
