#pragma once

#include <luna/models/encoder_layer.h>

namespace luna::nn {
struct CrossState;
struct KeyValueCache;
struct TokenProjections;
}  // namespace luna::nn

namespace luna::models {

/// What a decoder reads of the source.
struct DecoderSource {
  at::Tensor context;  ///< [B,m,D]
  Masks masks{};
};

/// What a decoder layer remembers of one stream: the source's part does not
/// grow; the target's part grows with softmax alone.
struct DecoderLayerState {
  nn::StreamState stream{};                    ///< mechanisms that stream
  std::shared_ptr<nn::KeyValueCache> cache{};  ///< those that do not: softmax
  std::shared_ptr<nn::CrossState> source{};
  std::shared_ptr<nn::TokenProjections> own{};  ///< self attention's

  /// As DecoderState::reorder.
  void reorder(const at::Tensor& rows, bool same_source);
  /// As DecoderState::fixed and take; `place` and `taken` are KeyValueCache's.
  DecoderLayerState fixed(int64_t rows, int64_t room, const at::Tensor& place,
                          const at::Tensor& taken) const;
  void take(const DecoderLayerState& from, const at::Tensor& rows,
            bool same_source);
  int64_t bytes() const;
};

/// Causal attention, attention to the source, and FFN, each with dropout,
/// residual and LayerNorm, before or after it as in EncoderLayer:
///
///   x = LN(x + causal(x, P));  Y, Y_P = cross(x, P, source);  x = LN(x + Y)
///   P = LN_P(P + Y_P);         x = LN(x + ffn(x))
///
/// P, of mechanisms with a memory, holds nothing of x. Names:
/// self_attention.*, self_norm.*, cross_attention.*, cross_norm.*,
/// memory_norm.* (with a memory), ffn.*, ffn_norm.*
class DecoderLayerImpl : public torch::nn::Module {
 public:
  explicit DecoderLayerImpl(const EncoderLayerOptions& options);

  /// x [B,n,D] and P, as LayerState has them. `packed`: how x is, where the
  /// source is, too, sequence i of one for sequence i of the other.
  LayerState forward(const LayerState& state, const DecoderSource& source,
                     const std::optional<data::Packing>& packed = {},
                     const NextNorm& next = {});

  /// Where a stream starts. `memory` becomes the next layer's.
  DecoderLayerState start(std::optional<at::Tensor>& memory,
                          const DecoderSource& source);
  /// Attention of the memory to the source, [B,H,l,m].
  at::Tensor memory_attention(const at::Tensor& memory,
                              const DecoderSource& source);
  /// One token, x [B,D]; inference only.
  LayerState step(const LayerState& token, DecoderLayerState& state,
                  const NextNorm& next = {});

  torch::nn::LayerNorm self_norm{nullptr}, cross_norm{nullptr},
      memory_norm{nullptr}, ffn_norm{nullptr};
  FeedForward ffn{nullptr};

 private:
  /// What cross attention reads.
  nn::LayerInput cross_input(const std::optional<at::Tensor>& memory,
                             const DecoderSource& source);
  std::optional<at::Tensor> next_memory(const at::Tensor& memory,
                                        const at::Tensor& packed);
  /// The feed-forward part, which reads `normed` and is added to `stream`.
  LayerState feed(const at::Tensor& stream, const at::Tensor& normed,
                  const NextNorm& next);

  std::shared_ptr<nn::AttentionLayer> self_attention_, cross_attention_;
  bool pre_, streams_;
  int64_t heads_;
  double dropout_;
};
TORCH_MODULE(DecoderLayer);

}  // namespace luna::models
