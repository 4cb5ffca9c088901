#include "models/layer_stack.h"

#include <c10/util/Exception.h>
#include <luna/nn/attention_registry.h>

namespace luna::models {

std::vector<EncoderLayer> make_layers(const std::string& owner, int64_t count,
                                      const EncoderLayerOptions& options) {
  TORCH_CHECK_VALUE(count > 0, owner, ": expected a layer or more, got ",
                    count);
  TORCH_CHECK_VALUE(options.heads > 0 && options.width % options.heads == 0,
                    owner,
                    ": expected a width that is a multiple of the heads, got ",
                    options.width, " and ", options.heads, " heads");
  TORCH_CHECK_VALUE(!nn::find_attention(options.attention).traits.memory, owner,
                    ": expected a mechanism without a memory, got ",
                    options.attention);
  std::vector<EncoderLayer> layers;
  for (int64_t i = 0; i < count; ++i) layers.emplace_back(options);
  return layers;
}

torch::nn::ModuleList as_list(const std::vector<EncoderLayer>& layers) {
  torch::nn::ModuleList list;
  for (const EncoderLayer& layer : layers) list->push_back(layer);
  return list;
}

std::vector<at::Tensor> run_layers(std::vector<EncoderLayer>& layers,
                                   const at::Tensor& x, const Masks& masks) {
  std::vector<at::Tensor> hidden = {x};
  LayerState state{x};
  for (size_t i = 0; i < layers.size(); ++i) {
    NextNorm next;
    if (layers[i]->pre_norm() && i + 1 < layers.size()) {
      next.norm = layers[i + 1]->attention_norm;
    }
    state = layers[i](state, masks, Wanted{}, next);
    hidden.push_back(state.x);
  }
  return hidden;
}

}  // namespace luna::models
