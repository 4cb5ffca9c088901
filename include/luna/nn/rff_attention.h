#pragma once

#include <luna/config/options.h>
#include <luna/nn/head_attention.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

namespace luna::nn {

struct RffAttentionOptions {
  int64_t features = 64;
  bool unit = false;
  bool gate = false;
  double eps = 1e-6;

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& visit) {
    visit(self.features, {.name = "features",
                          .help = "F, an even number: sines and cosines",
                          .minimum = 2});
    visit(self.unit,
          {.name = "unit", .help = "queries and keys of norm 1, as in RFA"});
    visit(self.gate, {.name = "gate",
                      .help = "causal alone: sums forget, as with RFA's gate"});
    visit(self.eps, {.name = "eps",
                     .help = "sums of weights count as no less than this",
                     .minimum = 1e-12});
  }
};

/// Linear attention with fixed random Fourier features of the Gaussian kernel:
///
///   phi(x) = [sin(W x'), cos(W x')] / sqrt(F/2),   x' = x d^-1/4,
///                                       or with `unit`  x' = x / |x|
///   phi(q) . phi(k) ~ exp(-|q' - k'|^2 / 2)
///
/// W [F/2,d] ~ N(0,1) is the buffer `random_projection`, drawn once: nothing
/// is learned. This is the ablation of universal attention's paper. With `unit`
/// the kernel is at least exp(-2): that is RFA (arXiv 2103.02143). Its estimate
/// is off by about 1/sqrt(F), so that sums of it, by which others are divided,
/// may still be near 0: they count as no less than `eps`. `gate` is RFA's gate,
///
///   S_t = g_t S_{t-1} + (1 - g_t) phi(k_t) [v_t, 1]^T
///   g_t = sigmoid(a . k_t + c)
///
/// with a = 0 and c = 2 at the start: the parameters gate_weight [H,d] and
/// gate_bias [H]. It serves causal attention alone.
class RffAttentionImpl : public torch::nn::Cloneable<RffAttentionImpl>,
                         public HeadAttention {
 public:
  using Options = RffAttentionOptions;

  explicit RffAttentionImpl(HeadShape shape,
                            const RffAttentionOptions& options = {});
  void reset() override;

  /// phi(x), x [...,d] -> [...,F].
  at::Tensor forward(const at::Tensor& x) const;

  std::tuple<at::Tensor, at::Tensor> attend(
      const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
      const AttendOptions& options = {}) override;
  at::Tensor step(const at::Tensor& query, const at::Tensor& key,
                  const at::Tensor& value, at::Tensor state,
                  const StepOptions& options = {}) override;

  at::Tensor random_projection;
  at::Tensor gate_weight, gate_bias;  ///< undefined without a gate

 private:
  at::Tensor gate_of(const at::Tensor& key) const;

  HeadShape shape_;
  RffAttentionOptions options_;
};
TORCH_MODULE(RffAttention);

}  // namespace luna::nn
