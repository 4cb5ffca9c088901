#include "ops/feed_forward.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
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
using Five = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;
using Signature = Tensor(const Tensor&, const Tensor&, const Tensor&,
                         const Tensor&, const Tensor&, double,
                         const OptionalTensor&);
using BackwardSignature = Five(const Tensor&, const Tensor&, const Tensor&,
                               const Tensor&, const Tensor&, double,
                               const OptionalTensor&);

Tensor call(const Tensor& x, const Tensor& up_weight, const Tensor& up_bias,
            const Tensor& down_weight, const Tensor& down_bias,
            double dropout_p, const OptionalTensor& seed) {
  static const auto op = find_op<Signature>("luna::_feed_forward");
  return op.call(x, up_weight, up_bias, down_weight, down_bias, dropout_p,
                 seed);
}

class FeedForwardFunction
    : public torch::autograd::Function<FeedForwardFunction> {
 public:
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& x,
                        const Tensor& up_weight, const Tensor& up_bias,
                        const Tensor& down_weight, const Tensor& down_bias,
                        double dropout_p, const OptionalTensor& seed) {
    at::AutoDispatchBelowADInplaceOrView below;
    ctx->save_for_backward(
        {x, up_weight, up_bias, down_weight, or_undefined(seed)});
    ctx->saved_data["dropout_p"] = dropout_p;
    return call(x, up_weight, up_bias, down_weight, down_bias, dropout_p, seed);
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* ctx,
      torch::autograd::variable_list grads) {
    static const auto op =
        find_op<BackwardSignature>("luna::_feed_forward_backward");
    const auto s = ctx->get_saved_variables();
    auto [x, up_weight, up_bias, down_weight, down_bias] =
        op.call(grads[0], s[0], s[1], s[2], s[3],
                ctx->saved_data["dropout_p"].toDouble(), or_nullopt(s[4]));
    return {x, up_weight, up_bias, down_weight, down_bias, Tensor(), Tensor()};
  }
};

/// For the hidden numbers [...,H] of x.
Tensor factors_of(const Tensor& x, const Tensor& up_weight, double dropout_p,
                  const OptionalTensor& seed) {
  check_dropout("feed_forward", dropout_p, seed, x);
  auto sizes = x.sizes().vec();
  sizes.back() = up_weight.size(0);
  return dropout_factors(sizes, seed, dropout_p, DropoutMap::kActivation);
}

Tensor forward_cpu(const Tensor& x, const Tensor& up_weight,
                   const Tensor& up_bias, const Tensor& down_weight,
                   const Tensor& down_bias, double dropout_p,
                   const OptionalTensor& seed) {
  const Tensor hidden =
      at::gelu(at::linear(x.to(at::kFloat), up_weight, up_bias)) *
      factors_of(x, up_weight, dropout_p, seed);
  return at::linear(hidden, down_weight, down_bias).to(x.scalar_type());
}

Five backward_cpu(const Tensor& grad, const Tensor& x, const Tensor& up_weight,
                  const Tensor& up_bias, const Tensor& down_weight,
                  double dropout_p, const OptionalTensor& seed) {
  const Tensor rows = x.reshape({-1, x.size(-1)}).to(at::kFloat);
  const Tensor up = grad.reshape({-1, x.size(-1)}).to(at::kFloat);
  const Tensor hidden = at::linear(rows, up_weight, up_bias);
  const Tensor factors = factors_of(rows, up_weight, dropout_p, seed);
  const Tensor inner =
      at::gelu_backward(at::mm(up, down_weight) * factors, hidden);
  return {at::mm(inner, up_weight).view(x.sizes()).to(x.scalar_type()),
          at::mm(inner.t(), rows), inner.sum(0),
          at::mm(up.t(), at::gelu(hidden) * factors), up.sum(0)};
}

Tensor forward_meta(const Tensor& x, const Tensor&, const Tensor&,
                    const Tensor&, const Tensor&, double,
                    const OptionalTensor&) {
  return at::empty_like(x);
}

Five backward_meta(const Tensor&, const Tensor& x, const Tensor& up_weight,
                   const Tensor& up_bias, const Tensor& down_weight, double,
                   const OptionalTensor&) {
  return {at::empty_like(x), at::empty_like(up_weight), at::empty_like(up_bias),
          at::empty_like(down_weight),
          at::empty_symint({x.sym_size(-1)}, up_bias.options())};
}

TORCH_LIBRARY_FRAGMENT(luna, m) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  m.def(
      "_feed_forward(Tensor x, Tensor up_weight, Tensor up_bias, "
      "Tensor down_weight, Tensor down_bias, float dropout_p, Tensor? seed) "
      "-> Tensor",
      tags);
  m.def(
      "_feed_forward_backward(Tensor grad, Tensor x, Tensor up_weight, "
      "Tensor up_bias, Tensor down_weight, float dropout_p, Tensor? seed) "
      "-> (Tensor, Tensor, Tensor, Tensor, Tensor)",
      tags);
}

TORCH_LIBRARY_IMPL(luna, CPU, m) {
  m.impl("_feed_forward", forward_cpu);
  m.impl("_feed_forward_backward", backward_cpu);
}

TORCH_LIBRARY_IMPL(luna, Meta, m) {
  m.impl("_feed_forward", forward_meta);
  m.impl("_feed_forward_backward", backward_meta);
}

}  // namespace

Tensor feed_forward(const Tensor& x, const Tensor& up_weight,
                    const Tensor& up_bias, const Tensor& down_weight,
                    const Tensor& down_bias, double dropout_p,
                    const OptionalTensor& seed) {
  if (any_needs_grad({x, up_weight, up_bias, down_weight, down_bias})) {
    return FeedForwardFunction::apply(x, up_weight, up_bias, down_weight,
                                      down_bias, dropout_p, seed);
  }
  return call(x, up_weight, up_bias, down_weight, down_bias, dropout_p, seed);
}

bool feed_forward_is_fused(const Tensor& x, const Tensor& up_weight,
                           const Tensor& up_bias, const Tensor& down_weight,
                           const Tensor& down_bias) {
  constexpr int64_t kWidth = 64, kHidden = 128;
  if (!x.is_cuda() || x.scalar_type() != at::kBFloat16 ||
      !at::autocast::is_autocast_enabled(at::kCUDA) ||
      at::autocast::get_autocast_dtype(at::kCUDA) != at::kBFloat16 ||
      up_weight.sizes() != at::IntArrayRef({kHidden, kWidth}) ||
      down_weight.sizes() != at::IntArrayRef({kWidth, kHidden})) {
    return false;
  }
  for (const Tensor& p : {up_weight, up_bias, down_weight, down_bias}) {
    if (!p.defined() || p.scalar_type() != at::kFloat) return false;
  }
  return true;
}

}  // namespace luna::ops
