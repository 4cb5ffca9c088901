#pragma once

#include <ATen/core/Tensor.h>
#include <luna/nn/attention_layer.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <optional>

namespace luna::nn {

/// A depthwise convolution: each channel's own weighted sum over neighbours,
///
///   line    out[t] = sum_j w[j] x[t + j - r],  j = 0 ... 2r
///   square  out[y,x] = sum_ij w[i,j] x[y + i - r, x + j - r]
///
/// with nothing beyond the ends of a sequence or a picture. Linear attention
/// has a kernel of q and k, and neighbours of one content look alike to it;
/// published linear attentions add such a sum over the values (FLatten,
/// PolaFormer). Name: weight [D,1,taps], or [D,taps,taps] of a square; starts
/// as torch's convolutions do, uniform within 1/sqrt(numbers a channel).
class LocalSumImpl : public torch::nn::Cloneable<LocalSumImpl> {
 public:
  LocalSumImpl(int64_t width, const LocalShape& shape);
  void reset() override;

  /// x [B,n,D]; of a square n is rows * columns. `mask` [B,n], bool or weights:
  /// values are multiplied by it. `starts` [S+1]: packed lines, x [1,T,D].
  at::Tensor forward(const at::Tensor& x,
                     const std::optional<at::Tensor>& mask = std::nullopt,
                     const std::optional<at::Tensor>& starts = std::nullopt);

  at::Tensor weight{};

 private:
  int64_t width_;
  LocalShape shape_;
};
TORCH_MODULE(LocalSum);

}  // namespace luna::nn
