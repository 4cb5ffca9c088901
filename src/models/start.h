#pragma once

#include <luna/models/model_config.h>
#include <torch/nn/module.h>

namespace luna::models {

/// Draws the weights as config.init says, from torch's default generator.
/// What a mechanism learns beside its projections keeps the start it has.
void start_weights(torch::nn::Module& model, const ModelConfig& config);

}  // namespace luna::models
