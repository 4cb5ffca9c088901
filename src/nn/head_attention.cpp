#include <c10/util/Exception.h>
#include <luna/nn/head_attention.h>

namespace luna::nn {

at::Tensor HeadAttention::step(const at::Tensor&, const at::Tensor&,
                               const at::Tensor&, at::Tensor,
                               const StepOptions&) {
  TORCH_CHECK_VALUE(false,
                    "step: expected a mechanism that streams (see "
                    "attentions()), got one that keeps no state");
}

std::shared_ptr<torch::nn::Module> as_module(
    const std::shared_ptr<HeadAttention>& heads) {
  return std::dynamic_pointer_cast<torch::nn::Module>(heads);
}

}  // namespace luna::nn
