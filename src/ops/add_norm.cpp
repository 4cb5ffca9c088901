#include "ops/add_norm.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "ops/autograd.h"
#include "ops/checks.h"
#include "ops/dispatch.h"
#include "ops/dropout_factors.h"

namespace luna::ops {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using OptionalType = std::optional<at::ScalarType>;
using Three = std::tuple<Tensor, Tensor, Tensor>;
using Four = std::tuple<Tensor, Tensor, Tensor, Tensor>;
using Signature = Three(const Tensor&, const OptionalTensor&, const Tensor&,
                        const Tensor&, const OptionalTensor&, double, double,
                        at::ScalarType, OptionalType);
using BackwardSignature = Four(const OptionalTensor&, const OptionalTensor&,
                               const OptionalTensor&, const Tensor&,
                               const Tensor&, OptionalType,
                               const OptionalTensor&, double, double);

Three call(const Tensor& x, const OptionalTensor& y, const Tensor& weight,
           const Tensor& bias, const OptionalTensor& seed, double dropout_p,
           double eps, at::ScalarType dtype, OptionalType low_dtype) {
  static const auto op = find_op<Signature>("luna::_add_norm");
  return op.call(x, y, weight, bias, seed, dropout_p, eps, dtype, low_dtype);
}

constexpr std::string_view kName = "add_norm";

bool is_fused_type(at::ScalarType type) {
  return type == at::kFloat || type == at::kBFloat16 || type == at::kHalf;
}

class AddNormFunction : public torch::autograd::Function<AddNormFunction> {
 public:
  static torch::autograd::variable_list forward(
      torch::autograd::AutogradContext* ctx, const Tensor& x,
      const OptionalTensor& y, const Tensor& weight, const Tensor& bias,
      const OptionalTensor& seed, double dropout_p, double eps,
      at::ScalarType dtype, OptionalType low_dtype) {
    TORCH_CHECK_TYPE(x.scalar_type() == at::kFloat, kName,
                     ": expected x of dtype float32 where gradients are wanted,"
                     " got ",
                     x.scalar_type());
    at::AutoDispatchBelowADInplaceOrView below;
    auto [sum, normed, low] =
        call(x, y, weight, bias, seed, dropout_p, eps, dtype, low_dtype);
    ctx->save_for_backward({y ? sum : x, weight, or_undefined(seed)});
    if (y) ctx->saved_data["y_dtype"] = y->scalar_type();
    ctx->saved_data["dropout_p"] = dropout_p;
    ctx->saved_data["eps"] = eps;
    ctx->set_materialize_grads(false);
    // x once more: who goes on with both gets their gradients added here.
    return {normed, y ? sum : x, low};
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* ctx,
      torch::autograd::variable_list grads) {
    static const auto op =
        find_op<BackwardSignature>("luna::_add_norm_backward");
    const auto s = ctx->get_saved_variables();
    const auto y_type = ctx->saved_data.find("y_dtype");
    const bool added = y_type != ctx->saved_data.end();
    OptionalType y_dtype;
    if (added) y_dtype = y_type->second.toScalarType();
    auto [x, y, weight, bias] =
        op.call(or_nullopt(grads[1]), or_nullopt(grads[0]),
                or_nullopt(grads[2]), s[0], s[1], y_dtype, or_nullopt(s[2]),
                ctx->saved_data["dropout_p"].toDouble(),
                ctx->saved_data["eps"].toDouble());
    return {x,        added ? y : Tensor(),
            weight,   bias,
            Tensor(), Tensor(),
            Tensor(), Tensor(),
            Tensor()};
  }
};

Three add_norm_autograd(const Tensor& x, const OptionalTensor& y,
                        const Tensor& weight, const Tensor& bias,
                        const OptionalTensor& seed, double dropout_p,
                        double eps, at::ScalarType dtype,
                        OptionalType low_dtype) {
  if (any_needs_grad({x, or_undefined(y), weight, bias})) {
    const auto out = AddNormFunction::apply(x, y, weight, bias, seed, dropout_p,
                                            eps, dtype, low_dtype);
    // An op must not return its input.
    return {y ? out[1] : at::empty({0}, x.options()), out[0], out[2]};
  }
  at::AutoDispatchBelowADInplaceOrView below;
  return call(x, y, weight, bias, seed, dropout_p, eps, dtype, low_dtype);
}

Three add_norm_cpu(const Tensor& x, const OptionalTensor& y,
                   const Tensor& weight, const Tensor& bias,
                   const OptionalTensor& seed, double dropout_p, double eps,
                   at::ScalarType dtype, OptionalType low_dtype) {
  check_add_norm(x, y, weight, bias, dropout_p, seed);
  const auto none = [&] { return at::empty({0}, x.options()); };
  const Tensor sum = y ? (x + y->to(x.scalar_type()) *
                                  dropout_factors(x.sizes(), seed, dropout_p,
                                                  DropoutMap::kResidual))
                             .to(x.scalar_type())
                       : x;
  const Tensor normed = at::layer_norm(sum, {sum.size(-1)}, weight, bias, eps);
  return {y ? sum : none(), normed.to(dtype),
          low_dtype ? normed.to(*low_dtype, false, /*copy=*/true) : none()};
}

Four backward_cpu(const OptionalTensor& grad_sum,
                  const OptionalTensor& grad_normed,
                  const OptionalTensor& grad_low, const Tensor& sum,
                  const Tensor& weight, OptionalType y_dtype,
                  const OptionalTensor& seed, double dropout_p, double eps) {
  const int64_t width = sum.size(-1);
  Tensor up = at::zeros_like(sum);
  for (const OptionalTensor& more : {grad_normed, grad_low}) {
    if (more) up = up + more->to(sum.scalar_type());
  }
  const Tensor centred = sum - sum.mean(-1, true);
  const Tensor rstd = (centred.square().mean(-1, true) + eps).rsqrt();
  const Tensor unit = centred * rstd, inner = up * weight;
  Tensor grad = rstd * (inner - inner.mean(-1, true) -
                        unit * (inner * unit).mean(-1, true));
  if (grad_sum) grad = grad + *grad_sum;
  const Tensor grad_y =
      y_dtype ? (grad * dropout_factors(sum.sizes(), seed, dropout_p,
                                        DropoutMap::kResidual))
                    .to(*y_dtype)
              : at::empty({0}, sum.options());
  return {grad, grad_y, (up * unit).reshape({-1, width}).sum(0),
          up.reshape({-1, width}).sum(0)};
}

Three add_norm_meta(const Tensor& x, const OptionalTensor& y, const Tensor&,
                    const Tensor&, const OptionalTensor&, double, double,
                    at::ScalarType dtype, OptionalType low_dtype) {
  const auto like = [&](at::ScalarType type) {
    return at::empty_like(x, x.options().dtype(type));
  };
  const auto none = [&] { return at::empty({0}, x.options()); };
  return {y ? at::empty_like(x) : none(), like(dtype),
          low_dtype ? like(*low_dtype) : none()};
}

Four backward_meta(const OptionalTensor&, const OptionalTensor&,
                   const OptionalTensor&, const Tensor& sum,
                   const Tensor& weight, OptionalType y_dtype,
                   const OptionalTensor&, double, double) {
  return {at::empty_like(sum),
          y_dtype ? at::empty_like(sum, sum.options().dtype(*y_dtype))
                  : at::empty({0}, sum.options()),
          at::empty_like(weight), at::empty_like(weight)};
}

TORCH_LIBRARY_FRAGMENT(luna, m) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  m.def(
      "_add_norm(Tensor x, Tensor? y, Tensor weight, Tensor bias, Tensor? "
      "seed, "
      "float dropout_p, float eps, ScalarType dtype, ScalarType? low_dtype) -> "
      "(Tensor sum, Tensor normed, Tensor low)",
      tags);
  m.def(
      "_add_norm_backward(Tensor? grad_sum, Tensor? grad_normed, Tensor? "
      "grad_low, Tensor sum, Tensor weight, ScalarType? y_dtype, Tensor? seed, "
      "float dropout_p, "
      "float eps) -> (Tensor, Tensor, Tensor, Tensor)",
      tags);
}

TORCH_LIBRARY_IMPL(luna, CPU, m) {
  m.impl("_add_norm", add_norm_cpu);
  m.impl("_add_norm_backward", backward_cpu);
}

TORCH_LIBRARY_IMPL(luna, Meta, m) {
  m.impl("_add_norm", add_norm_meta);
  m.impl("_add_norm_backward", backward_meta);
}

TORCH_LIBRARY_IMPL(luna, Autograd, m) {
  m.impl("_add_norm", add_norm_autograd);
}

}  // namespace

void check_add_norm(const Tensor& x, const OptionalTensor& y,
                    const Tensor& weight, const Tensor& bias, double dropout_p,
                    const OptionalTensor& seed) {
  TORCH_CHECK_TYPE(is_fused_type(x.scalar_type()), kName,
                   ": expected x of dtype float32, bfloat16 or float16, got ",
                   x.scalar_type());
  TORCH_CHECK_VALUE(x.dim() >= 1 && (!y || x.sizes() == y->sizes()), kName,
                    ": expected y of shape ", x.sizes(), " (x's), got ",
                    y ? y->sizes() : at::IntArrayRef());
  for (const Tensor& p : {weight, bias}) {
    TORCH_CHECK_TYPE(p.scalar_type() == x.scalar_type(), kName,
                     ": expected weight and bias of dtype ", x.scalar_type(),
                     " (x's), got ", p.scalar_type());
    TORCH_CHECK_VALUE(p.dim() == 1 && p.size(0) == x.size(-1), kName,
                      ": expected weight and bias of shape [", x.size(-1),
                      "], got ", p.sizes());
  }
  check_dropout(kName, dropout_p, seed, x);
}

bool add_norm_is_fused(const Tensor& x, const OptionalTensor& y,
                       const Tensor& weight) {
  const int64_t width = x.size(-1);
  return x.is_cuda() && is_fused_type(x.scalar_type()) &&
         weight.scalar_type() == x.scalar_type() &&
         (!y || is_fused_type(y->scalar_type())) &&
         (x.scalar_type() == at::kFloat ||
          !any_needs_grad({x, or_undefined(y), weight})) &&
         width % 2 == 0 && width <= 1024;
}

AddNormResult add_norm(const Tensor& x, const OptionalTensor& y,
                       const Tensor& weight, const Tensor& bias,
                       const AddNormOptions& o) {
  if (any_needs_grad({x, or_undefined(y), weight, bias})) {
    const auto out =
        AddNormFunction::apply(x, y, weight, bias, o.seed, o.dropout_p, o.eps,
                               o.normed_dtype, o.low_dtype);
    return {out[1], out[0], out[2]};
  }
  auto [sum, normed, low] = call(x, y, weight, bias, o.seed, o.dropout_p, o.eps,
                                 o.normed_dtype, o.low_dtype);
  return {y ? sum : x, normed, low};
}

}  // namespace luna::ops
