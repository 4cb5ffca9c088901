#include "ops/mlp_head.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "ops/autograd.h"
#include "ops/dispatch.h"

namespace luna::ops {
namespace {

using at::Tensor;
using Two = std::tuple<Tensor, Tensor>;
using Four = std::tuple<Tensor, Tensor, Tensor, Tensor>;
using Signature = Two(const Tensor&, const Tensor&, const Tensor&,
                      const Tensor&);
using BackwardSignature = Four(const Tensor&, const Tensor&, const Tensor&,
                               const Tensor&, const Tensor&);

/// The logits, and what is behind the relu.
Two call(const Tensor& x, const Tensor& hidden_weight,
         const Tensor& hidden_bias, const Tensor& out_weight) {
  static const auto op = find_op<Signature>("luna::_mlp_head");
  return op.call(x, hidden_weight, hidden_bias, out_weight);
}

class MlpHeadFunction : public torch::autograd::Function<MlpHeadFunction> {
 public:
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& x,
                        const Tensor& hidden_weight, const Tensor& hidden_bias,
                        const Tensor& out_weight) {
    at::AutoDispatchBelowADInplaceOrView below;
    const auto [logits, active] =
        call(x, hidden_weight, hidden_bias, out_weight);
    ctx->save_for_backward({x, active, hidden_weight, out_weight});
    return logits;
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* ctx,
      torch::autograd::variable_list grads) {
    static const auto op =
        find_op<BackwardSignature>("luna::_mlp_head_backward");
    const auto s = ctx->get_saved_variables();
    auto [x, hidden_weight, hidden_bias, out_weight] =
        op.call(grads[0], s[0], s[1], s[2], s[3]);
    return {x, hidden_weight, hidden_bias, out_weight};
  }
};

Two forward_cpu(const Tensor& x, const Tensor& hidden_weight,
                const Tensor& hidden_bias, const Tensor& out_weight) {
  const Tensor active = at::linear(x, hidden_weight, hidden_bias).relu();
  return {at::linear(active, out_weight), active};
}

Four backward_cpu(const Tensor& grad, const Tensor& x, const Tensor& active,
                  const Tensor& hidden_weight, const Tensor& out_weight) {
  const Tensor inner = at::mm(grad, out_weight) * active.le(0).logical_not();
  return {at::mm(inner, hidden_weight), at::mm(inner.t(), x), inner.sum(0),
          at::mm(grad.t(), active)};
}

TORCH_LIBRARY_FRAGMENT(luna, m) {
  m.def(
      "_mlp_head(Tensor x, Tensor hidden_weight, Tensor hidden_bias, "
      "Tensor out_weight) -> (Tensor, Tensor)");
  m.def(
      "_mlp_head_backward(Tensor grad, Tensor x, Tensor active, "
      "Tensor hidden_weight, Tensor out_weight) "
      "-> (Tensor, Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(luna, CPU, m) {
  m.impl("_mlp_head", forward_cpu);
  m.impl("_mlp_head_backward", backward_cpu);
}

}  // namespace

Tensor mlp_head(const Tensor& x, const Tensor& hidden_weight,
                const Tensor& hidden_bias, const Tensor& out_weight) {
  if (any_needs_grad({x, hidden_weight, hidden_bias, out_weight})) {
    return MlpHeadFunction::apply(x, hidden_weight, hidden_bias, out_weight);
  }
  return std::get<0>(call(x, hidden_weight, hidden_bias, out_weight));
}

bool mlp_head_is_fused(const Tensor& x, const Tensor& hidden_weight,
                       const Tensor& hidden_bias, const Tensor& out_weight) {
  constexpr int64_t kMostRows = 512, kMostWidth = 256, kMostHidden = 512,
                    kMostClasses = 64;
  for (const Tensor& t : {x, hidden_weight, hidden_bias, out_weight}) {
    if (!t.defined() || !t.is_cuda() || t.scalar_type() != at::kFloat) {
      return false;
    }
  }
  return x.dim() == 2 && x.size(0) > 0 && x.size(0) <= kMostRows &&
         x.size(1) <= kMostWidth && hidden_weight.size(0) <= kMostHidden &&
         out_weight.size(0) <= kMostClasses;
}

}  // namespace luna::ops
