// Attention layers one token at a time, where AttentionLayer::step does not
// serve: attention to another sequence, and softmax with its growing cache.
#pragma once

#include <luna/nn/attention_layer.h>

#include <vector>

namespace luna::nn {

/// What of another sequence (input.context, its key_mask; input.memory, its
/// memory_mask) a layer's steps read, computed once.
struct CrossState {
  // Softmax and nested:
  at::Tensor keys{}, values{};  ///< [B,H,m,d]; nested: [B,H,l,d]
  /// As given, [B,m]; nested: [B,l], numbers of the dtype that the kernels
  /// compute in; or undefined.
  at::Tensor mask{};
  // Mechanisms that stream, whose steps do not depend on m:
  at::Tensor sums{};      ///< HeadAttention::attend's state
  at::Tensor none{};      ///< [B] zeros: a step's key does not enter the sums
  at::Tensor prepared{};  ///< HeadAttention::prepare(), may be undefined
  std::optional<at::Tensor> memory{};  ///< nested: the raw Y_P [B,l,D]

  /// Those of the above that are defined and have a row for each of the batch,
  /// but for the memory.
  std::vector<at::Tensor*> rows();
};

/// x [B,D] -> [B,D], as forward() gives it for x and that context.
CrossState start_cross(AttentionLayer& layer, const LayerInput& input);
at::Tensor step_cross(AttentionLayer& layer, const at::Tensor& x,
                      const CrossState& state);

/// How much of each position of the context each row of the memory packs, in
/// a nested layer: [B,H,l,m].
at::Tensor pack_map(AttentionLayer& layer, const LayerInput& input);

/// All that a causal layer's step makes of its token by matrices (queries,
/// keys, values ...), as one product: joined once, not at every step.
struct TokenProjections {
  at::Tensor weight{}, bias{};  ///< [parts * D, D], [parts * D]

  /// x [B,D] -> parts [B,D], views of one tensor.
  std::vector<at::Tensor> operator()(const at::Tensor& x) const;
};
TokenProjections join_projections(AttentionLayer& layer);

/// layer.step(x, state), given what the projections make of x.
at::Tensor step_projected(AttentionLayer& layer,
                          const std::vector<at::Tensor>& parts,
                          StreamState& state);

/// Keys and values of the tokens that a causal softmax layer has read.
struct KeyValueCache {
  at::Tensor keys{}, values{};  ///< [B,H,room,d]
  int64_t length = 0;           ///< how many of them are real
  /// Where shapes must not change: the room does not grow, and not `length` but
  /// these say what is real. Else undefined. All layers share them.
  at::Tensor place{};  ///< [1] int64: where the next token goes
  at::Tensor taken{};  ///< [1,room] bool: that place and those before it

  /// Row i of the batch becomes row rows[i] of what it was.
  void reorder(const at::Tensor& rows);
  int64_t bytes() const;  ///< of the real ones
};

/// A token of such a layer, as its projections give it; the cache grows by one,
/// but for `place` and `taken`, which move with the token and not with the
/// layer.
at::Tensor step_cached(AttentionLayer& layer,
                       const std::vector<at::Tensor>& parts,
                       KeyValueCache& cache);

}  // namespace luna::nn
