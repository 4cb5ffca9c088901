#pragma once

#include <luna/models/encoder_layer.h>
#include <luna/models/model.h>

#include <optional>
#include <vector>

namespace luna::models {

/// A model whose layers can be looked into: what conversion works on.
class LayeredModel : public Model {
 public:
  virtual const std::vector<EncoderLayer>& layers() const = 0;

  /// What each layer's attention is given for a batch, [B,n,D], which tokens
  /// are real, [B,n] (none: all), and the logits that come of it.
  struct Attended {
    std::vector<at::Tensor> x{};
    std::optional<at::Tensor> mask{};
    at::Tensor logits{};
  };
  virtual Attended attended(const data::Batch& batch) = 0;
};

}  // namespace luna::models
