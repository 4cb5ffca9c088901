#pragma once

#include <ATen/core/Tensor.h>
#include <luna/io/safetensors.h>
#include <luna/train/train_config.h>

#include <string>
#include <vector>

namespace luna::train {

using io::NamedTensors;

/// Adam (decay is added to the gradient) and AdamW (decay is taken from the
/// weights), each in torch's fused form: one pass over every parameter; and
/// Apollo (Ma 2020, arXiv 2009.13586; decay is added to the gradient), a
/// quasi-Newton method with a diagonal curvature B for each parameter:
///
///   a = (1 - beta1) / (1 - beta1^t);  D = g - m;  m += a D
///   N = |d|_4 + eps / sigma;  v = d / N
///   B += (-a <D, v> / N - sum(B v^2)) v^2
///   d = m / max(|B|, sigma);  p -= lr d
///
/// All that a step reads lies on the parameters' device, so nothing waits for
/// it and the step can be captured as a graph.
class Optimizer {
 public:
  Optimizer(const OptimizerConfig& config, const NamedTensors& parameters);

  /// A backward pass that follows makes new ones, without adding to zeros.
  void drop_gradients();

  /// The norm of all gradients as one vector.
  at::Tensor gradient_norm() const;

  /// What becomes of a step: float32 scalars on the parameters' device.
  struct Verdict {
    at::Tensor scale;  ///< gradients are divided by it
    at::Tensor skip;   ///< 1: no update at all
    at::Tensor taken;  ///< 1 - skip
  };
  void step(const at::Tensor& lr, const Verdict& verdict);

  /// The moments and the count of updates, as views: first_moment.NAME,
  /// second_moment.NAME (Apollo: B), direction.NAME (Apollo alone: d), updates.
  NamedTensors state() const;

 private:
  /// Zeros for parameters that no backward pass has reached.
  std::vector<at::Tensor> gradients() const;

  void update(const std::vector<size_t>& which, const at::Tensor& lr,
              const std::vector<at::Tensor>& gradients, const Verdict& verdict);
  void apollo(size_t i, const at::Tensor& lr, const at::Tensor& gradient,
              const Verdict& verdict);

  OptimizerConfig config_;
  std::vector<std::string> names_;
  std::vector<at::Tensor> parameters_, first_, second_, direction_;
  at::Tensor updates_;
  std::vector<size_t> others_, feature_maps_;  ///< the latter with their own lr
};

}  // namespace luna::train
