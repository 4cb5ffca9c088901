#pragma once

#include <luna/models/model_config.h>
#include <torch/nn/module.h>

namespace luna::models::testing {

/// Logits [1, classes] of one sequence of ids [1,n], without padding, from a
/// Classifier's weights: embedding, norms, residuals, FFN, pooling and head
/// written out; attention is the layer's own, which tests/nn checks.
at::Tensor plain_classifier(const torch::nn::Module& model,
                            const ModelConfig& config, const at::Tensor& ids);

}  // namespace luna::models::testing
