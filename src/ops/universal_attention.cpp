#include <luna/ops/universal_attention.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "ops/autograd.h"
#include "ops/checks.h"
#include "ops/dispatch.h"
#include "ops/feature_parameters.h"
#include "ops/linear_sums.h"

namespace luna::ops {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Two = std::tuple<Tensor, Tensor>;
using Four = std::tuple<Tensor, Tensor, Tensor, Tensor>;

using PublicSignature = Two(const Tensor&, const Tensor&, const Tensor&,
                            const Tensor&, const Tensor&, const Tensor&,
                            const Tensor&, const Tensor&, const Tensor&,
                            const OptionalTensor&, const OptionalTensor&,
                            const OptionalTensor&, bool, bool, double,
                            const OptionalTensor&, const OptionalTensor&);
using ForwardSignature = Four(const Tensor&, const Tensor&, const Tensor&,
                              const Tensor&, const Tensor&, const Tensor&,
                              const Tensor&, const Tensor&, const Tensor&,
                              const OptionalTensor&, const OptionalTensor&,
                              const OptionalTensor&, bool, bool, double,
                              const OptionalTensor&, const Tensor&, bool);
using BackwardSignature = std::vector<Tensor>(
    const Tensor&, const OptionalTensor&, const Tensor&, const Tensor&,
    const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
    const Tensor&, const Tensor&, const OptionalTensor&, const OptionalTensor&,
    const OptionalTensor&, bool, bool, double, const OptionalTensor&,
    const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&);
using StepSignature = Tensor(const Tensor&, const Tensor&, const Tensor&,
                             Tensor&, const Tensor&, const Tensor&,
                             const Tensor&, const Tensor&, const Tensor&,
                             const Tensor&, const OptionalTensor&, bool, double,
                             const OptionalTensor&);

constexpr std::string_view kName = "universal_attention";

Four call_forward(const LinearSums& s, const FeatureMapParameters& p,
                  bool nonneg, const Tensor& table, bool save) {
  static const auto op =
      find_op<ForwardSignature>("luna::_universal_attention_forward");
  return op.call(s.query, s.key, s.value, p.projection, p.projection_bias,
                 p.hidden_weight, p.hidden_bias, p.output_weight, p.output_bias,
                 s.key_weight, s.cu_seqlens_q, s.cu_seqlens_k, s.causal, nonneg,
                 s.eps, s.state, table, save);
}

class UniversalAttentionFunction
    : public torch::autograd::Function<UniversalAttentionFunction> {
 public:
  static torch::autograd::variable_list forward(
      torch::autograd::AutogradContext* ctx, const Tensor& query,
      const Tensor& key, const Tensor& value, const Tensor& projection,
      const Tensor& projection_bias, const Tensor& hidden_weight,
      const Tensor& hidden_bias, const Tensor& output_weight,
      const Tensor& output_bias, const OptionalTensor& key_weight,
      const OptionalTensor& cu_seqlens_q, const OptionalTensor& cu_seqlens_k,
      bool causal, bool nonneg, double eps, const OptionalTensor& state,
      const OptionalTensor& table) {
    at::AutoDispatchBelowADInplaceOrView below;
    const FeatureMapParameters parameters{projection,    projection_bias,
                                          hidden_weight, hidden_bias,
                                          output_weight, output_bias};
    check_feature_parameters(kName, "query", query, -3, parameters, table);
    const Tensor built = table_or_built(query, parameters, table);
    auto [output, final_state, denominator, segment_states] =
        call_forward({query, key, value, key_weight, cu_seqlens_q, cu_seqlens_k,
                      causal, true, eps, state},
                     parameters, nonneg, built, true);
    ctx->save_for_backward(
        {query, key, value, projection, projection_bias, hidden_weight,
         hidden_bias, output_weight, output_bias, or_undefined(key_weight),
         or_undefined(cu_seqlens_q), or_undefined(cu_seqlens_k),
         or_undefined(state), built, output, final_state, denominator,
         segment_states});
    ctx->saved_data["causal"] = causal;
    ctx->saved_data["nonneg"] = nonneg;
    ctx->saved_data["eps"] = eps;
    ctx->set_materialize_grads(false);
    return {output, final_state};
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* ctx,
      torch::autograd::variable_list grads) {
    static const auto op =
        find_op<BackwardSignature>("luna::universal_attention_backward");
    const auto s = ctx->get_saved_variables();
    const Tensor grad_output =
        grads[0].defined() ? grads[0] : at::zeros_like(s[14]);
    const auto g = op.call(
        grad_output, or_nullopt(grads[1]), s[0], s[1], s[2], s[3], s[4], s[5],
        s[6], s[7], s[8], or_nullopt(s[9]), or_nullopt(s[10]),
        or_nullopt(s[11]), ctx->saved_data["causal"].toBool(),
        ctx->saved_data["nonneg"].toBool(), ctx->saved_data["eps"].toDouble(),
        or_nullopt(s[12]), s[13], s[14], s[15], s[16], s[17]);
    torch::autograd::variable_list result(17);
    std::copy_n(g.begin(), 9, result.begin());
    if (s[9].defined() && s[9].is_floating_point()) result[9] = g[9];
    if (s[12].defined()) result[15] = g[10];
    return result;
  }
};

Two universal_attention_autograd(
    const Tensor& query, const Tensor& key, const Tensor& value,
    const Tensor& projection, const Tensor& projection_bias,
    const Tensor& hidden_weight, const Tensor& hidden_bias,
    const Tensor& output_weight, const Tensor& output_bias,
    const OptionalTensor& key_weight, const OptionalTensor& cu_seqlens_q,
    const OptionalTensor& cu_seqlens_k, bool causal, bool nonneg, double eps,
    const OptionalTensor& state, const OptionalTensor& table) {
  if (any_needs_grad({query, key, value, projection, projection_bias,
                      hidden_weight, hidden_bias, output_weight, output_bias,
                      or_undefined(key_weight), or_undefined(state)})) {
    const auto results = UniversalAttentionFunction::apply(
        query, key, value, projection, projection_bias, hidden_weight,
        hidden_bias, output_weight, output_bias, key_weight, cu_seqlens_q,
        cu_seqlens_k, causal, nonneg, eps, state, table);
    return {results[0], results[1]};
  }
  at::AutoDispatchBelowADInplaceOrView below;
  return universal_attention(query, key, value,
                             {projection, projection_bias, hidden_weight,
                              hidden_bias, output_weight, output_bias},
                             {key_weight, cu_seqlens_q, cu_seqlens_k, causal,
                              nonneg, eps, state, table});
}

// The same on every device: the forward, with nothing kept.
Two universal_attention_below(
    const Tensor& query, const Tensor& key, const Tensor& value,
    const Tensor& projection, const Tensor& projection_bias,
    const Tensor& hidden_weight, const Tensor& hidden_bias,
    const Tensor& output_weight, const Tensor& output_bias,
    const OptionalTensor& key_weight, const OptionalTensor& cu_seqlens_q,
    const OptionalTensor& cu_seqlens_k, bool causal, bool nonneg, double eps,
    const OptionalTensor& state, const OptionalTensor& table) {
  const FeatureMapParameters parameters{projection,    projection_bias,
                                        hidden_weight, hidden_bias,
                                        output_weight, output_bias};
  check_feature_parameters(kName, "query", query, -3, parameters, table);
  auto [output, final_state, denominator, segment_states] = call_forward(
      {query, key, value, key_weight, cu_seqlens_q, cu_seqlens_k, causal, true,
       eps, state},
      parameters, nonneg, table_or_built(query, parameters, table), false);
  return {output, final_state};
}

Four forward_meta(const Tensor& query, const Tensor& key, const Tensor& value,
                  const Tensor& projection, const Tensor& projection_bias,
                  const Tensor& hidden_weight, const Tensor& hidden_bias,
                  const Tensor& output_weight, const Tensor& output_bias,
                  const OptionalTensor& key_weight,
                  const OptionalTensor& cu_seqlens_q,
                  const OptionalTensor& cu_seqlens_k, bool causal, bool,
                  double eps, const OptionalTensor& state, const Tensor& table,
                  bool save) {
  const LinearSums sums{query,        key,    value, key_weight, cu_seqlens_q,
                        cu_seqlens_k, causal, true,  eps,        state};
  const FeatureMapParameters parameters{projection,    projection_bias,
                                        hidden_weight, hidden_bias,
                                        output_weight, output_bias};
  const auto features = feature_count(parameters);
  check_linear_sums(kName, sums, features);
  check_feature_parameters(kName, "query", query, -3, parameters, table);
  auto r = empty_result(sums, features, save);
  return {r.output, r.state, r.denominator, r.segment_states};
}

std::vector<Tensor> backward_meta(
    const Tensor&, const OptionalTensor&, const Tensor& query,
    const Tensor& key, const Tensor& value, const Tensor& projection,
    const Tensor& projection_bias, const Tensor& hidden_weight,
    const Tensor& hidden_bias, const Tensor& output_weight,
    const Tensor& output_bias, const OptionalTensor& key_weight,
    const OptionalTensor&, const OptionalTensor&, bool, bool, double,
    const OptionalTensor& state, const Tensor&, const Tensor&, const Tensor&,
    const Tensor&, const Tensor&) {
  std::vector<Tensor> result;
  for (const Tensor& x : {query, key, value}) result.push_back(empty_heads(x));
  for (const Tensor& x : {projection, projection_bias, hidden_weight,
                          hidden_bias, output_weight, output_bias}) {
    result.push_back(at::empty_symint(x.sym_sizes(), x.options()));
  }
  for (const OptionalTensor& x : {key_weight, state}) {
    result.push_back(x.has_value() && x->is_floating_point()
                         ? at::empty_symint(x->sym_sizes(), x->options())
                         : at::empty({0}, query.options()));
  }
  return result;
}

std::vector<Tensor> backward_autograd(
    const Tensor& grad_output, const OptionalTensor& grad_state,
    const Tensor& query, const Tensor& key, const Tensor& value,
    const Tensor& projection, const Tensor& projection_bias,
    const Tensor& hidden_weight, const Tensor& hidden_bias,
    const Tensor& output_weight, const Tensor& output_bias,
    const OptionalTensor& key_weight, const OptionalTensor& cu_seqlens_q,
    const OptionalTensor& cu_seqlens_k, bool causal, bool nonneg, double eps,
    const OptionalTensor& state, const Tensor& table, const Tensor& output,
    const Tensor& final_state, const Tensor& denominator,
    const Tensor& segment_states) {
  refuse_double_backward(
      kName,
      {grad_output, or_undefined(grad_state), query, key, value, projection,
       projection_bias, hidden_weight, hidden_bias, output_weight, output_bias,
       or_undefined(key_weight), or_undefined(state)});
  at::AutoDispatchBelowADInplaceOrView below;
  static const auto op =
      find_op<BackwardSignature>("luna::universal_attention_backward");
  return op.call(grad_output, grad_state, query, key, value, projection,
                 projection_bias, hidden_weight, hidden_bias, output_weight,
                 output_bias, key_weight, cu_seqlens_q, cu_seqlens_k, causal,
                 nonneg, eps, state, table, output, final_state, denominator,
                 segment_states);
}

Tensor step_autograd(const Tensor& query, const Tensor& key,
                     const Tensor& value, Tensor& state,
                     const Tensor& projection, const Tensor& projection_bias,
                     const Tensor& hidden_weight, const Tensor& hidden_bias,
                     const Tensor& output_weight, const Tensor& output_bias,
                     const OptionalTensor& key_weight, bool nonneg, double eps,
                     const OptionalTensor& table) {
  refuse_grad_in_step(
      "universal_attention_step",
      {query, key, value, state, projection, projection_bias, hidden_weight,
       hidden_bias, output_weight, output_bias, or_undefined(key_weight)});
  Tensor output = [&] {
    at::AutoDispatchBelowADInplaceOrView below;
    return universal_attention_step(query, key, value, state,
                                    {projection, projection_bias, hidden_weight,
                                     hidden_bias, output_weight, output_bias},
                                    {key_weight, nonneg, eps, table});
  }();
  mark_written(state);
  return output;
}

Tensor step_meta(const Tensor& query, const Tensor& key, const Tensor& value,
                 Tensor& state, const Tensor& projection,
                 const Tensor& projection_bias, const Tensor& hidden_weight,
                 const Tensor& hidden_bias, const Tensor& output_weight,
                 const Tensor& output_bias, const OptionalTensor& key_weight,
                 bool, double eps, const OptionalTensor& table) {
  const FeatureMapParameters parameters{projection,    projection_bias,
                                        hidden_weight, hidden_bias,
                                        output_weight, output_bias};
  check_feature_parameters("universal_attention_step", "query", query, -2,
                           parameters, table);
  check_linear_step("universal_attention_step", query, key, value, state,
                    key_weight, eps, feature_count(parameters));
  return at::empty_symint(value.sym_sizes(), value.options());
}

#define LUNA_PARAMETERS                                               \
  "Tensor projection, Tensor projection_bias, Tensor hidden_weight, " \
  "Tensor hidden_bias, Tensor output_weight, Tensor output_bias, "

TORCH_LIBRARY_FRAGMENT(luna, m) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  m.def(
      "universal_attention(Tensor query, Tensor key, Tensor "
      "value, " LUNA_PARAMETERS
      "*, Tensor? key_weight=None, Tensor? cu_seqlens_q=None, "
      "Tensor? cu_seqlens_k=None, bool causal=False, bool nonneg=True, "
      "float eps=1e-6, Tensor? state=None, Tensor? table=None) "
      "-> (Tensor output, Tensor state)",
      tags);
  m.def(
      "_universal_attention_forward(Tensor query, Tensor key, "
      "Tensor value, " LUNA_PARAMETERS
      "Tensor? key_weight, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, "
      "bool causal, bool nonneg, float eps, Tensor? state, Tensor table, "
      "bool save) -> (Tensor output, Tensor state, Tensor denominator, "
      "Tensor segment_states)",
      tags);
  m.def(
      "universal_attention_backward(Tensor grad_output, "
      "Tensor? grad_state, Tensor query, Tensor key, Tensor "
      "value, " LUNA_PARAMETERS
      "Tensor? key_weight, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, "
      "bool causal, bool nonneg, float eps, Tensor? state, Tensor table, "
      "Tensor output, Tensor final_state, Tensor denominator, "
      "Tensor segment_states) -> Tensor[]",
      tags);
  m.def(
      "universal_attention_step(Tensor query, Tensor key, Tensor value, "
      "Tensor(a!) state, " LUNA_PARAMETERS
      "*, Tensor? key_weight=None, bool nonneg=True, float eps=1e-6, "
      "Tensor? table=None) -> Tensor",
      tags);
}

#undef LUNA_PARAMETERS

TORCH_LIBRARY_IMPL(luna, CompositeExplicitAutograd, m) {
  m.impl("universal_attention", universal_attention_below);
}

TORCH_LIBRARY_IMPL(luna, Meta, m) {
  m.impl("_universal_attention_forward", forward_meta);
  m.impl("universal_attention_backward", backward_meta);
  m.impl("universal_attention_step", step_meta);
}

TORCH_LIBRARY_IMPL(luna, Autograd, m) {
  m.impl("universal_attention", universal_attention_autograd);
  m.impl("universal_attention_backward", backward_autograd);
  m.impl("universal_attention_step", step_autograd);
}

}  // namespace

Two universal_attention(const Tensor& query, const Tensor& key,
                        const Tensor& value, const FeatureMapParameters& p,
                        const UniversalAttentionOptions& o) {
  static const auto op = find_op<PublicSignature>("luna::universal_attention");
  return op.call(query, key, value, p.projection, p.projection_bias,
                 p.hidden_weight, p.hidden_bias, p.output_weight, p.output_bias,
                 o.key_weight, o.cu_seqlens_q, o.cu_seqlens_k, o.causal,
                 o.nonneg, o.eps, o.state, o.table);
}

Tensor universal_attention_step(const Tensor& query, const Tensor& key,
                                const Tensor& value, Tensor state,
                                const FeatureMapParameters& p,
                                const UniversalAttentionStepOptions& o) {
  static const auto op =
      find_op<StepSignature>("luna::universal_attention_step");
  return op.call(query, key, value, state, p.projection, p.projection_bias,
                 p.hidden_weight, p.hidden_bias, p.output_weight, p.output_bias,
                 o.key_weight, o.nonneg, o.eps, o.table);
}

}  // namespace luna::ops
