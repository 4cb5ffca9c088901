#pragma once

#include <luna/config/options.h>
#include <luna/nn/head_attention.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

namespace luna::nn {

struct LinearAttentionOptions {
  template <class Self, class Visitor>
  static void visit(Self&, Visitor&&) {}
};

/// Linear attention with the fixed features phi(x) = elu(x) + 1.
class LinearAttentionImpl : public torch::nn::Cloneable<LinearAttentionImpl>,
                            public HeadAttention {
 public:
  using Options = LinearAttentionOptions;

  explicit LinearAttentionImpl(HeadShape = {},
                               const LinearAttentionOptions& = {}) {}
  void reset() override {}

  /// phi(x), x [...,d] -> [...,d].
  at::Tensor forward(const at::Tensor& x) const;

  std::tuple<at::Tensor, at::Tensor> attend(
      const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
      const AttendOptions& options = {}) override;
  at::Tensor step(const at::Tensor& query, const at::Tensor& key,
                  const at::Tensor& value, at::Tensor state,
                  const StepOptions& options = {}) override;
};
TORCH_MODULE(LinearAttention);

}  // namespace luna::nn
