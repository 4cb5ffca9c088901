#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace luna::nn {

/// Neighbours that a layer hears of beside attention: see LocalSum.
struct LocalShape {
  int64_t taps = 0;  ///< on a line, or on each side of a square; 0: none
  /// A square over pictures of so many columns; 0: a line.
  int64_t columns = 0;
};

/// What every attention layer is built for.
struct LayerShape {
  int64_t embed_dim = 0;
  int64_t num_heads = 1;
  bool causal = false;  ///< position t sees positions j <= t only
  LocalShape local{};   ///< head-level mechanisms, not causal
};

/// What a stream remembers: its size does not depend on its length.
struct StreamState {
  /// Batch first in each: beam search reorders all of them by dimension 0.
  std::vector<at::Tensor> tensors{};
  /// HeadAttention::prepare(): from the weights alone, may be undefined.
  at::Tensor prepared{};
};

/// What a layer may be given beside x; each mechanism refuses what it cannot
/// use.
struct LayerInput {
  std::optional<at::Tensor> context{};   ///< [B,m,D]: attend to this, not to x
  std::optional<at::Tensor> memory{};    ///< P [B,l,D], or [l,D] for all
  std::optional<at::Tensor> key_mask{};  ///< [B,m] bool, true = takes part;
                                         ///< or float weights >= 0
  std::optional<at::Tensor> query_mask{};   ///< [B,n] bool; x's key_mask if x
                                            ///< attends to itself
  std::optional<at::Tensor> memory_mask{};  ///< [B,l] bool
  /// Packed sequences: x [1,total,D], int32 or int64 [S+1]; those of the keys
  /// are the queries' where x attends to itself.
  std::optional<at::Tensor> cu_seqlens_q{}, cu_seqlens_k{};
  int64_t longest = 0;  ///< of them, as the host knows it; 0: it does not
  std::optional<StreamState> state{};  ///< go on from here
};

struct LayerOutput {
  at::Tensor x;                        ///< [B,n,D]
  std::optional<at::Tensor> memory{};  ///< nested: the raw Y_P [B,l,D]; other
                                       ///< mechanisms hand theirs through
  StreamState state{};  ///< where a stream goes on; empty if it cannot
};

/// A whole attention layer, projections and all, batch first. Implementations
/// are torch modules.
class AttentionLayer {
 public:
  virtual ~AttentionLayer() = default;

  /// x [B,n,D] -> {[B,n,D], memory, state}
  virtual LayerOutput forward(const at::Tensor& x,
                              const LayerInput& input = {}) = 0;

  /// One token of a causal layer: x [B,D] -> [B,D]. Advances in place the
  /// `state` that forward returned (of a prompt, or of x [B,0,D] to start from
  /// nothing); inference only. Refused where there is no state.
  virtual at::Tensor step(const at::Tensor& x, StreamState& state);
};

/// The module behind the interface, to register it.
std::shared_ptr<torch::nn::Module> as_module(
    const std::shared_ptr<AttentionLayer>& layer);

}  // namespace luna::nn
