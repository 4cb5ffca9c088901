#include <c10/util/Exception.h>
#include <luna/nn/attention_layer.h>

namespace luna::nn {

at::Tensor AttentionLayer::step(const at::Tensor&, StreamState&) {
  TORCH_CHECK_VALUE(false,
                    "step: expected a causal layer of a mechanism that streams "
                    "(see attentions()), got one that keeps no state");
}

std::shared_ptr<torch::nn::Module> as_module(
    const std::shared_ptr<AttentionLayer>& layer) {
  return std::dynamic_pointer_cast<torch::nn::Module>(layer);
}

}  // namespace luna::nn
