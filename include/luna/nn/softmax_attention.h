#pragma once

#include <luna/config/options.h>
#include <luna/nn/head_attention.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

namespace luna::nn {

struct SoftmaxAttentionOptions {
  double dropout = 0.0;

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& visit) {
    visit(self.dropout, {.name = "dropout",
                         .help = "dropout on the attention map",
                         .minimum = 0,
                         .maximum = 1});
  }
};

/// softmax(q k^T / sqrt(d)) v by torch's scaled_dot_product_attention: the
/// quadratic mechanism that the others are measured against. A float
/// key_weight w_j multiplies exp(q.k_j), as in pack_attention.
class SoftmaxAttentionImpl : public torch::nn::Cloneable<SoftmaxAttentionImpl>,
                             public HeadAttention {
 public:
  using Options = SoftmaxAttentionOptions;

  explicit SoftmaxAttentionImpl(HeadShape shape = {},
                                const SoftmaxAttentionOptions& options = {});
  void reset() override {}

  std::tuple<at::Tensor, at::Tensor> attend(
      const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
      const AttendOptions& options = {}) override;

 private:
  at::Tensor attend_packed(const at::Tensor& query, const at::Tensor& key,
                           const at::Tensor& value,
                           const AttendOptions& options);

  SoftmaxAttentionOptions options_;
};
TORCH_MODULE(SoftmaxAttention);

}  // namespace luna::nn
