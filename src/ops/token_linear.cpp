#include "ops/token_linear.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include "ops/autograd.h"
#include "ops/dispatch.h"

namespace luna::ops {
namespace {

using at::Tensor;

bool takes(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const auto fits = [](const Tensor& t) {
    return t.scalar_type() == at::kBFloat16 && t.is_contiguous() &&
           reinterpret_cast<uintptr_t>(t.const_data_ptr()) % 16 == 0;
  };
  // What does not go together is left to torch, which says so.
  return x.is_cuda() && weight.device() == x.device() &&
         bias.device() == x.device() && x.dim() == 2 && weight.dim() == 2 &&
         bias.dim() == 1 && weight.size(1) == x.size(1) &&
         bias.size(0) == weight.size(0) && x.size(0) > 0 &&
         x.size(0) <= kTokenLinearRows && x.size(1) > 0 &&
         x.size(1) % kTokenLinearIn == 0 && weight.size(0) > 0 &&
         weight.size(0) % kTokenLinearOut == 0 && fits(x) && fits(weight) &&
         fits(bias);
}

TORCH_LIBRARY_FRAGMENT(luna, m) {
  m.def(
      "_token_linear(Tensor x, Tensor weight, Tensor bias, bool relu) -> "
      "Tensor");
}

}  // namespace

Tensor plain_token_linear(const Tensor& x, const Tensor& weight,
                          const Tensor& bias, bool relu) {
  return relu ? at::_addmm_activation(bias, x, weight.t())
              : at::addmm(bias, x, weight.t());
}

Tensor token_linear(const Tensor& x, const Tensor& weight, const Tensor& bias,
                    bool relu) {
  if (any_needs_grad({x, weight, bias}) || !takes(x, weight, bias)) {
    return plain_token_linear(x, weight, bias, relu);
  }
  static const auto op =
      find_op<Tensor(const Tensor&, const Tensor&, const Tensor&, bool)>(
          "luna::_token_linear");
  return op.call(x, weight, bias, relu);
}

}  // namespace luna::ops
