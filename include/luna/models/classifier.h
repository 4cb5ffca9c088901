#pragma once

#include <luna/models/encoder.h>

namespace luna::models {

/// Pooled vectors to logits: out(x), or out(ReLU(hidden(x))) with an out that
/// has no bias. Names: hidden.* (mlp only), out.*
class ClassifierHeadImpl : public torch::nn::Module {
 public:
  ClassifierHeadImpl(const ModelConfig& config, int64_t features,
                     int64_t classes);

  at::Tensor forward(const at::Tensor& x);

  torch::nn::Linear hidden{nullptr}, out{nullptr};
};
TORCH_MODULE(ClassifierHead);

/// One sequence, one of `classes`. Names: the encoder's, and head.*
class Classifier : public Encoder {
 public:
  Classifier(const ModelConfig& config, const data::TaskInfo& task,
             int64_t longest);

  at::Tensor forward(const data::Batch& batch) override;

  ClassifierHead head{nullptr};
};

/// Two sequences through one encoder; the head sees both results, a and b,
/// as `pair_features` says. Names as the Classifier's.
class PairClassifier : public Encoder {
 public:
  PairClassifier(const ModelConfig& config, const data::TaskInfo& task,
                 int64_t longest);

  at::Tensor forward(const data::Batch& batch) override;

  ClassifierHead head{nullptr};
};

}  // namespace luna::models
