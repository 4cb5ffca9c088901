// A stack of layers without a memory.
#pragma once

#include <luna/models/encoder_layer.h>
#include <torch/nn/modules/container/modulelist.h>

#include <string>
#include <vector>

namespace luna::models {

/// `owner` starts the messages.
std::vector<EncoderLayer> make_layers(const std::string& owner, int64_t count,
                                      const EncoderLayerOptions& options);
torch::nn::ModuleList as_list(const std::vector<EncoderLayer>& layers);

/// x [B,n,D], then what each layer makes of it.
std::vector<at::Tensor> run_layers(std::vector<EncoderLayer>& layers,
                                   const at::Tensor& x, const Masks& masks);

}  // namespace luna::models
