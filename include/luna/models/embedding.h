#pragma once

#include <ATen/core/Tensor.h>
#include <luna/data/batch.h>
#include <luna/models/model_config.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include <vector>

namespace luna::models {

/// Sines and cosines of the positions 0 ... length - 1, [length, width]:
/// halves [sin | cos] of position * exp(-i ln 10^4 / (width/2 - 1)).
at::Tensor sinusoid(int64_t length, int64_t width,
                    const at::TensorOptions& options = {});

/// Ids to vectors: dropout( LayerNorm( tokens + positions ) ).
///
/// With sinusoidal positions the tokens are multiplied by sqrt(width), as in
/// the original Transformer. With `embedding` = line an id v of V data ids is
/// (1 - t) black + t white, t = v / (V - 1). Names: tokens.weight [rows, D] (of
/// a line [4, D]: black, white, [CLS], padding), positions.weight (learned
/// only), norm.* (embedding_norm only).
class EmbeddingImpl : public torch::nn::Module {
 public:
  /// `rows`: data ids and specials; `max_positions`: read if learned.
  EmbeddingImpl(const ModelConfig& config, int64_t rows, int64_t max_positions);

  /// ids [B,n] -> [B,n,D]; `mask` [B,n] bool: what is not real becomes 0.
  at::Tensor forward(const at::Tensor& ids,
                     const std::optional<at::Tensor>& mask = std::nullopt);
  /// ids [1,T] -> [1,T,D]; positions are counted from each sequence's start,
  /// the filler's are all 0.
  at::Tensor forward_packed(const at::Tensor& ids, const data::Packing& packed);

  /// [rows,D]: what an id is before its position is added.
  at::Tensor table() const;

  /// x [...,l,D] as an embedding of l positions of its own: what a learned
  /// memory needs where positions are sinusoidal; else x.
  at::Tensor add_sinusoid(const at::Tensor& x);

  torch::nn::Embedding tokens{nullptr}, positions{nullptr};
  torch::nn::LayerNorm norm{nullptr};

 private:
  /// At least so many rows of the table, as x is stored.
  at::Tensor sinusoids(int64_t rows, const at::Tensor& x);

  int64_t rows_;
  bool line_;
  bool sinusoidal_;
  double dropout_;
  /// Of growing lengths: no weights. None is dropped for a longer one, as a
  /// recorded graph may read it.
  std::vector<at::Tensor> sinusoids_{};
};
TORCH_MODULE(Embedding);

}  // namespace luna::models
