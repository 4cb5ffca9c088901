#include "ops/linear.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "ops/autograd.h"
#include "ops/dispatch.h"

namespace luna::ops {
namespace {

using at::Tensor;

/// Without autocast and autograd: both are done here.
class LinearFunction : public torch::autograd::Function<LinearFunction> {
 public:
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& x,
                        const Tensor& weight, const Tensor& bias,
                        at::ScalarType dtype) {
    at::AutoDispatchBelowADInplaceOrView below;
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(
        c10::autocast_dispatch_keyset);
    const Tensor low = x.to(dtype), w = weight.to(dtype);
    ctx->save_for_backward({low, w});
    ctx->saved_data["x_dtype"] = x.scalar_type();
    ctx->saved_data["x_needs_grad"] = needs_grad(x);
    return at::linear(low, w, bias.to(dtype));
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* ctx,
      torch::autograd::variable_list grads) {
    const auto s = ctx->get_saved_variables();
    const Tensor& x = s[0];
    const Tensor& w = s[1];
    const Tensor up = grads[0].reshape({-1, w.size(0)}).contiguous();
    Tensor grad_x;
    if (ctx->saved_data["x_needs_grad"].toBool()) {
      grad_x = at::mm(up, w).view(x.sizes()).to(
          ctx->saved_data["x_dtype"].toScalarType());
    }
    const auto [grad_weight, grad_bias] =
        linear_gradients(up, x.reshape({-1, w.size(1)}));
    return {grad_x, grad_weight, grad_bias, Tensor()};
  }
};

using Gradients = std::tuple<Tensor, Tensor>;

Gradients gradients_cpu(const Tensor& up, const Tensor& x) {
  const Tensor rows = up.to(at::kFloat);
  return {at::mm(rows.t(), x.to(at::kFloat)), rows.sum(0)};
}

Gradients gradients_meta(const Tensor& up, const Tensor& x) {
  const auto options = x.options().dtype(at::kFloat);
  return {at::empty_symint({up.sym_size(1), x.sym_size(1)}, options),
          at::empty_symint({up.sym_size(1)}, options)};
}

TORCH_LIBRARY_FRAGMENT(luna, m) {
  m.def("_linear_gradients(Tensor up, Tensor x) -> (Tensor, Tensor)",
        {at::Tag::pt2_compliant_tag});
}

TORCH_LIBRARY_IMPL(luna, CPU, m) { m.impl("_linear_gradients", gradients_cpu); }

TORCH_LIBRARY_IMPL(luna, Meta, m) {
  m.impl("_linear_gradients", gradients_meta);
}

}  // namespace

Gradients linear_gradients(const Tensor& up, const Tensor& x) {
  static const auto op = find_op<Gradients(const Tensor&, const Tensor&)>(
      "luna::_linear_gradients");
  return op.call(up, x);
}

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const bool low = x.is_cuda() && bias.defined() &&
                   weight.scalar_type() == at::kFloat &&
                   at::autocast::is_autocast_enabled(at::kCUDA);
  if (!low || !any_needs_grad({x, weight, bias})) {
    return at::linear(x, weight, bias);
  }
  return LinearFunction::apply(x, weight, bias,
                               at::autocast::get_autocast_dtype(at::kCUDA));
}

}  // namespace luna::ops
