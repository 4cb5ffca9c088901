#include <ATen/ATen.h>
#include <luna/models/classifier.h>

#include "models/start.h"
#include "ops/mlp_head.h"

namespace luna::models {
namespace {

int64_t pair_width(const ModelConfig& config) {
  return (config.pair_features == "full" ? 4 : 2) * config.width;
}

}  // namespace

ClassifierHeadImpl::ClassifierHeadImpl(const ModelConfig& config,
                                       int64_t features, int64_t classes) {
  const bool mlp = config.head == "mlp";
  if (mlp) {
    hidden = register_module("hidden",
                             torch::nn::Linear(features, config.head_hidden));
  }
  out = register_module(
      "out", torch::nn::Linear(torch::nn::LinearOptions(
                                   mlp ? config.head_hidden : features, classes)
                                   .bias(!mlp)));
}

at::Tensor ClassifierHeadImpl::forward(const at::Tensor& x) {
  if (hidden &&
      ops::mlp_head_is_fused(x, hidden->weight, hidden->bias, out->weight)) {
    return ops::mlp_head(x, hidden->weight, hidden->bias, out->weight);
  }
  return out(hidden ? at::relu(hidden(x)) : x);
}

Classifier::Classifier(const ModelConfig& config, const data::TaskInfo& task,
                       int64_t longest)
    : Encoder(config, task, longest) {
  head = register_module("head",
                         ClassifierHead(config, config.width, task.classes));
  start_weights(*this, config);
}

at::Tensor Classifier::forward(const data::Batch& batch) {
  return head(pool(batch.first));
}

PairClassifier::PairClassifier(const ModelConfig& config,
                               const data::TaskInfo& task, int64_t longest)
    : Encoder(config, task, longest) {
  head = register_module(
      "head", ClassifierHead(config, pair_width(config), task.classes));
  start_weights(*this, config);
}

at::Tensor PairClassifier::forward(const data::Batch& batch) {
  TORCH_CHECK_VALUE(batch.second,
                    "PairClassifier: expected a batch of pairs, got one of "
                    "single sequences");
  const auto a = pool(batch.first), b = pool(*batch.second);
  return head(config().pair_features == "full"
                  ? at::cat({a, b, a * b, a - b}, 1)
                  : at::cat({a, b}, 1));
}

}  // namespace luna::models
