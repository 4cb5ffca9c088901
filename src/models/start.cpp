#include "models/start.h"

#include <torch/nn/init.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <cmath>

namespace luna::models {

void start_weights(torch::nn::Module& model, const ModelConfig& config) {
  at::NoGradGuard no_grad;
  const bool xavier = config.init == "xavier", bert = config.init == "bert";
  const double by_width = 1 / std::sqrt(static_cast<double>(config.width));
  for (const auto& entry : model.named_modules("", /*include_self=*/false)) {
    const std::string& name = entry.key();
    if (auto* table = entry.value()->as<torch::nn::Embedding>()) {
      table->weight.normal_(0, xavier ? by_width : 0.02);
    }
    auto* linear = entry.value()->as<torch::nn::Linear>();
    if (linear == nullptr || !(xavier || bert)) continue;
    const bool in_projection = name.find("attention.") != std::string::npos &&
                               !name.ends_with(".out_proj");
    if (xavier) {
      torch::nn::init::xavier_uniform_(linear->weight,
                                       in_projection ? std::sqrt(0.5) : 1);
    } else {
      linear->weight.normal_(0, 0.02);
    }
    if (linear->bias.defined()) linear->bias.zero_();
  }
  auto parameters = model.named_parameters(/*recurse=*/false);
  for (const char* name : {"memory", "decoder_memory"}) {
    if (auto* memory = parameters.find(name)) memory->normal_(0, by_width);
  }
}

}  // namespace luna::models
