// Attention layers one token at a time, where AttentionLayer::step does not
// serve: attention to another sequence, and softmax with its growing cache.
#pragma once

#include <luna/nn/attention_layer.h>

namespace luna::nn {

/// What of another sequence (input.context, its key_mask; input.memory, its
/// memory_mask) a layer's steps read, computed once.
struct CrossState {
  at::Tensor keys, values;             ///< [B,H,m,d]; nested: [B,H,l,d]
  std::optional<at::Tensor> mask{};    ///< [B,m]; nested: [B,l]
  std::optional<at::Tensor> memory{};  ///< nested: the raw Y_P [B,l,D]
};

/// x [B,D] -> [B,D], as forward() gives it for x and that context.
CrossState start_cross(AttentionLayer& layer, const LayerInput& input);
at::Tensor step_cross(AttentionLayer& layer, const at::Tensor& x,
                      const CrossState& state);

/// Of a causal softmax layer; the caches [B,H,t,d] grow by one.
at::Tensor step_cached(AttentionLayer& layer, const at::Tensor& x,
                       at::Tensor& keys, at::Tensor& values);

}  // namespace luna::nn
