#include <luna/ops/linear_attention.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "ops/autograd.h"
#include "ops/checks.h"
#include "ops/dispatch.h"
#include "ops/linear_sums.h"

namespace luna::ops {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Four = std::tuple<Tensor, Tensor, Tensor, Tensor>;
using Five = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

using PublicSignature = std::tuple<Tensor, Tensor>(
    const Tensor&, const Tensor&, const Tensor&, const OptionalTensor&,
    const OptionalTensor&, const OptionalTensor&, bool, bool, double,
    const OptionalTensor&);
using ForwardSignature = Four(const Tensor&, const Tensor&, const Tensor&,
                              const OptionalTensor&, const OptionalTensor&,
                              const OptionalTensor&, bool, bool, double,
                              const OptionalTensor&, bool);
using BackwardSignature = Five(const Tensor&, const OptionalTensor&,
                               const Tensor&, const Tensor&, const Tensor&,
                               const OptionalTensor&, const OptionalTensor&,
                               const OptionalTensor&, bool, bool, double,
                               const OptionalTensor&, const Tensor&,
                               const Tensor&, const Tensor&, const Tensor&);
using StepSignature = Tensor(const Tensor&, const Tensor&, const Tensor&,
                             Tensor&, const OptionalTensor&, bool, double);

Four call_forward(const LinearSums& s, bool save) {
  static const auto op =
      find_op<ForwardSignature>("luna::_linear_attention_forward");
  return op.call(s.query, s.key, s.value, s.key_weight, s.cu_seqlens_q,
                 s.cu_seqlens_k, s.causal, s.normalize, s.eps, s.state, save);
}

class LinearAttentionFunction
    : public torch::autograd::Function<LinearAttentionFunction> {
 public:
  static torch::autograd::variable_list forward(
      torch::autograd::AutogradContext* ctx, const Tensor& query,
      const Tensor& key, const Tensor& value, const OptionalTensor& key_weight,
      const OptionalTensor& cu_seqlens_q, const OptionalTensor& cu_seqlens_k,
      bool causal, bool normalize, double eps, const OptionalTensor& state) {
    at::AutoDispatchBelowADInplaceOrView below;
    auto [output, final_state, denominator, segment_states] =
        call_forward({query, key, value, key_weight, cu_seqlens_q, cu_seqlens_k,
                      causal, normalize, eps, state},
                     true);
    ctx->save_for_backward({query, key, value, or_undefined(key_weight),
                            or_undefined(cu_seqlens_q),
                            or_undefined(cu_seqlens_k), or_undefined(state),
                            output, final_state, denominator, segment_states});
    ctx->saved_data["causal"] = causal;
    ctx->saved_data["normalize"] = normalize;
    ctx->saved_data["eps"] = eps;
    ctx->set_materialize_grads(false);
    return {output, final_state};
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* ctx,
      torch::autograd::variable_list grads) {
    static const auto op =
        find_op<BackwardSignature>("luna::linear_attention_backward");
    const auto saved = ctx->get_saved_variables();
    const Tensor grad_output =
        grads[0].defined() ? grads[0] : at::zeros_like(saved[7]);
    auto [query, key, value, weight, state] =
        op.call(grad_output, or_nullopt(grads[1]), saved[0], saved[1], saved[2],
                or_nullopt(saved[3]), or_nullopt(saved[4]),
                or_nullopt(saved[5]), ctx->saved_data["causal"].toBool(),
                ctx->saved_data["normalize"].toBool(),
                ctx->saved_data["eps"].toDouble(), or_nullopt(saved[6]),
                saved[7], saved[8], saved[9], saved[10]);
    const Tensor none;
    const bool soft = saved[3].defined() && saved[3].is_floating_point();
    return {query, key,
            value, soft ? weight : none,
            none,  none,
            none,  none,
            none,  saved[6].defined() ? state : none};
  }
};

std::tuple<Tensor, Tensor> linear_attention_autograd(
    const Tensor& query, const Tensor& key, const Tensor& value,
    const OptionalTensor& key_weight, const OptionalTensor& cu_seqlens_q,
    const OptionalTensor& cu_seqlens_k, bool causal, bool normalize, double eps,
    const OptionalTensor& state) {
  if (any_needs_grad(
          {query, key, value, or_undefined(key_weight), or_undefined(state)})) {
    const auto results = LinearAttentionFunction::apply(
        query, key, value, key_weight, cu_seqlens_q, cu_seqlens_k, causal,
        normalize, eps, state);
    return {results[0], results[1]};
  }
  at::AutoDispatchBelowADInplaceOrView below;
  static const auto op = find_op<PublicSignature>("luna::linear_attention");
  return op.call(query, key, value, key_weight, cu_seqlens_q, cu_seqlens_k,
                 causal, normalize, eps, state);
}

// The same on every device: the forward, with nothing kept.
std::tuple<Tensor, Tensor> linear_attention_below(
    const Tensor& query, const Tensor& key, const Tensor& value,
    const OptionalTensor& key_weight, const OptionalTensor& cu_seqlens_q,
    const OptionalTensor& cu_seqlens_k, bool causal, bool normalize, double eps,
    const OptionalTensor& state) {
  auto [output, final_state, denominator, segment_states] =
      call_forward({query, key, value, key_weight, cu_seqlens_q, cu_seqlens_k,
                    causal, normalize, eps, state},
                   false);
  return {output, final_state};
}

Four forward_meta(const Tensor& query, const Tensor& key, const Tensor& value,
                  const OptionalTensor& key_weight,
                  const OptionalTensor& cu_seqlens_q,
                  const OptionalTensor& cu_seqlens_k, bool causal,
                  bool normalize, double eps, const OptionalTensor& state,
                  bool save) {
  const LinearSums sums{query,        key,          value,  key_weight,
                        cu_seqlens_q, cu_seqlens_k, causal, normalize,
                        eps,          state};
  check_linear_sums("linear_attention", sums, query.sym_size(-1));
  auto r = empty_result(sums, query.sym_size(-1), save);
  return {r.output, r.state, r.denominator, r.segment_states};
}

Tensor empty_like_or_none(const OptionalTensor& x, const Tensor& like) {
  return x.has_value() && x->is_floating_point()
             ? at::empty_symint(x->sym_sizes(), x->options())
             : at::empty({0}, like.options());
}

Five backward_meta(const Tensor&, const OptionalTensor&, const Tensor& query,
                   const Tensor& key, const Tensor& value,
                   const OptionalTensor& key_weight, const OptionalTensor&,
                   const OptionalTensor&, bool, bool, double,
                   const OptionalTensor& state, const Tensor&, const Tensor&,
                   const Tensor&, const Tensor&) {
  return {empty_heads(query), empty_heads(key), empty_heads(value),
          empty_like_or_none(key_weight, query),
          empty_like_or_none(state, query)};
}

Five backward_autograd(const Tensor& grad_output,
                       const OptionalTensor& grad_state, const Tensor& query,
                       const Tensor& key, const Tensor& value,
                       const OptionalTensor& key_weight,
                       const OptionalTensor& cu_seqlens_q,
                       const OptionalTensor& cu_seqlens_k, bool causal,
                       bool normalize, double eps, const OptionalTensor& state,
                       const Tensor& output, const Tensor& final_state,
                       const Tensor& denominator,
                       const Tensor& segment_states) {
  refuse_double_backward(
      "linear_attention",
      {grad_output, or_undefined(grad_state), query, key, value,
       or_undefined(key_weight), or_undefined(state)});
  at::AutoDispatchBelowADInplaceOrView below;
  static const auto op =
      find_op<BackwardSignature>("luna::linear_attention_backward");
  return op.call(grad_output, grad_state, query, key, value, key_weight,
                 cu_seqlens_q, cu_seqlens_k, causal, normalize, eps, state,
                 output, final_state, denominator, segment_states);
}

Tensor step_autograd(const Tensor& query, const Tensor& key,
                     const Tensor& value, Tensor& state,
                     const OptionalTensor& key_weight, bool normalize,
                     double eps) {
  refuse_grad_in_step("linear_attention_step",
                      {query, key, value, state, or_undefined(key_weight)});
  static const auto op = find_op<StepSignature>("luna::linear_attention_step");
  Tensor output = [&] {
    at::AutoDispatchBelowADInplaceOrView below;
    return op.call(query, key, value, state, key_weight, normalize, eps);
  }();
  mark_written(state);
  return output;
}

Tensor step_meta(const Tensor& query, const Tensor& key, const Tensor& value,
                 Tensor& state, const OptionalTensor& key_weight, bool,
                 double eps) {
  check_linear_step("linear_attention_step", query, key, value, state,
                    key_weight, eps, query.sym_size(-1));
  return at::empty_symint(value.sym_sizes(), value.options());
}

#define LUNA_SUMS_ARGUMENTS                                          \
  "Tensor? key_weight, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, " \
  "bool causal, bool normalize, float eps, Tensor? state"

TORCH_LIBRARY_FRAGMENT(luna, m) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  m.def(
      "linear_attention(Tensor query, Tensor key, Tensor value, *, "
      "Tensor? key_weight=None, Tensor? cu_seqlens_q=None, "
      "Tensor? cu_seqlens_k=None, bool causal=False, bool normalize=True, "
      "float eps=1e-6, Tensor? state=None) -> (Tensor output, Tensor state)",
      tags);
  m.def(
      "_linear_attention_forward(Tensor query, Tensor key, Tensor "
      "value, " LUNA_SUMS_ARGUMENTS
      ", bool save) -> (Tensor output, Tensor state, Tensor denominator, "
      "Tensor segment_states)",
      tags);
  m.def(
      "linear_attention_backward(Tensor grad_output, Tensor? grad_state, "
      "Tensor query, Tensor key, Tensor value, " LUNA_SUMS_ARGUMENTS
      ", Tensor output, Tensor final_state, Tensor denominator, "
      "Tensor segment_states) -> (Tensor query, Tensor key, Tensor value, "
      "Tensor key_weight, Tensor state)",
      tags);
  m.def(
      "linear_attention_step(Tensor query, Tensor key, Tensor value, "
      "Tensor(a!) state, *, Tensor? key_weight=None, bool normalize=True, "
      "float eps=1e-6) -> Tensor",
      tags);
}

#undef LUNA_SUMS_ARGUMENTS

TORCH_LIBRARY_IMPL(luna, CompositeExplicitAutograd, m) {
  m.impl("linear_attention", linear_attention_below);
}

TORCH_LIBRARY_IMPL(luna, Meta, m) {
  m.impl("_linear_attention_forward", forward_meta);
  m.impl("linear_attention_backward", backward_meta);
  m.impl("linear_attention_step", step_meta);
}

TORCH_LIBRARY_IMPL(luna, Autograd, m) {
  m.impl("linear_attention", linear_attention_autograd);
  m.impl("linear_attention_backward", backward_autograd);
  m.impl("linear_attention_step", step_autograd);
}

}  // namespace

std::tuple<Tensor, Tensor> linear_attention(const Tensor& query,
                                            const Tensor& key,
                                            const Tensor& value,
                                            const LinearAttentionOptions& o) {
  static const auto op = find_op<PublicSignature>("luna::linear_attention");
  return op.call(query, key, value, o.key_weight, o.cu_seqlens_q,
                 o.cu_seqlens_k, o.causal, o.normalize, o.eps, o.state);
}

Tensor linear_attention_step(const Tensor& query, const Tensor& key,
                             const Tensor& value, Tensor state,
                             const LinearAttentionStepOptions& o) {
  static const auto op = find_op<StepSignature>("luna::linear_attention_step");
  return op.call(query, key, value, state, o.key_weight, o.normalize, o.eps);
}

}  // namespace luna::ops
