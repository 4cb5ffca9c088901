#pragma once

#include <ATen/core/Tensor.h>
#include <luna/io/safetensors.h>
#include <luna/train/train_config.h>

#include <string>
#include <vector>

namespace luna::train {

using io::NamedTensors;

/// Adam (decay is added to the gradient) and AdamW (decay is taken from the
/// weights), each in torch's fused form: one pass over every parameter. All
/// that a step reads lies on the parameters' device, so nothing waits for it
/// and the step can be captured as a graph.
class Optimizer {
 public:
  /// Gives every parameter a gradient of zeros that stays in place.
  Optimizer(const OptimizerConfig& config, const NamedTensors& parameters);

  void zero_gradients();

  /// The norm of all gradients as one vector.
  at::Tensor gradient_norm() const;

  /// One update with the gradients divided by `scale`; none at all where
  /// `skip` is 1. All three are float32 scalars on the parameters' device.
  void step(const at::Tensor& lr, const at::Tensor& scale,
            const at::Tensor& skip);

  /// The moments and the count of updates, as views: first_moment.NAME,
  /// second_moment.NAME, updates.
  NamedTensors state() const;

  const std::vector<at::Tensor>& gradients() const { return gradients_; }

 private:
  OptimizerConfig config_;
  std::vector<std::string> names_;
  std::vector<at::Tensor> parameters_, gradients_, first_, second_;
  at::Tensor updates_;
  std::vector<at::Tensor> updates_of_each_;  ///< updates_, once a parameter
};

}  // namespace luna::train
