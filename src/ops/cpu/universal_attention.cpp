// universal_attention on the CPU: linear_sums.h over universal features.

#include <torch/library.h>

#include "ops/cpu/linear_step.h"
#include "ops/cpu/linear_sums.h"

namespace luna::cpu {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

std::tuple<Tensor, Tensor, Tensor, Tensor> forward(
    const Tensor& query, const Tensor& key, const Tensor& value,
    const Tensor& projection, const Tensor& projection_bias,
    const Tensor& hidden_weight, const Tensor& hidden_bias,
    const Tensor& output_weight, const Tensor& output_bias,
    const OptionalTensor& key_weight, const OptionalTensor& cu_seqlens_q,
    const OptionalTensor& cu_seqlens_k, bool causal, bool nonneg, double eps,
    const OptionalTensor& state, const Tensor& table, bool save) {
  const ops::LinearSums sums{query,        key,          value,  key_weight,
                             cu_seqlens_q, cu_seqlens_k, causal, true,
                             eps,          state};
  const ops::FeatureMapParameters p{projection,  projection_bias, hidden_weight,
                                    hidden_bias, output_weight,   output_bias};
  constexpr std::string_view kName = "universal_attention";
  ops::check_linear_sums(kName, sums, ops::feature_count(p));
  ops::check_feature_parameters(kName, "query", query, -3, p, table);
  const auto run = [&]<typename T>() {
    const PreparedParameters<T> prepared(p, table, nonneg);
    return forward_sums<T>(sums,
                           UniversalFeatures<T>(prepared, query, Tensor()),
                           UniversalFeatures<T>(prepared, key, Tensor()), save);
  };
  const auto r = query.scalar_type() == at::kDouble
                     ? run.template operator()<double>()
                     : run.template operator()<float>();
  return {r.output, r.state, r.denominator, r.segment_states};
}

std::vector<Tensor> backward(
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
  const ops::LinearSums sums{query,        key,          value,  key_weight,
                             cu_seqlens_q, cu_seqlens_k, causal, true,
                             eps,          state};
  const ops::FeatureMapParameters p{projection,  projection_bias, hidden_weight,
                                    hidden_bias, output_weight,   output_bias};
  std::vector<Tensor> result = {on_huge_pages(ops::empty_heads(query)),
                                on_huge_pages(ops::empty_heads(key))};
  const auto or_empty = [&](const Tensor& x) {
    return x.defined() ? x : at::empty({0}, query.options());
  };
  const auto run = [&]<typename T>() {
    const PreparedParameters<T> prepared(p, table, nonneg);
    auto [g, sinks] = backward_sums<T>(
        sums, {output, final_state, denominator, segment_states}, grad_output,
        grad_state.value_or(Tensor()),
        UniversalFeatures<T>(prepared, query, result[0]),
        UniversalFeatures<T>(prepared, key, result[1]),
        [&] { return ParameterSums<T>(prepared); });
    result.push_back(g.value);
    for (Tensor& x :
         ParameterSums<T>::gradients(std::move(sinks), prepared, p)) {
      result.push_back(std::move(x));
    }
    result.push_back(or_empty(g.key_weight));
    result.push_back(or_empty(g.state));
  };
  if (query.scalar_type() == at::kDouble) {
    run.template operator()<double>();
  } else {
    run.template operator()<float>();
  }
  return result;
}

Tensor step(const Tensor& query, const Tensor& key, const Tensor& value,
            Tensor& state, const Tensor& projection,
            const Tensor& projection_bias, const Tensor& hidden_weight,
            const Tensor& hidden_bias, const Tensor& output_weight,
            const Tensor& output_bias, const OptionalTensor& key_weight,
            bool nonneg, double eps, const OptionalTensor& table) {
  const ops::FeatureMapParameters p{projection,  projection_bias, hidden_weight,
                                    hidden_bias, output_weight,   output_bias};
  constexpr std::string_view kName = "universal_attention_step";
  ops::check_feature_parameters(kName, "query", query, -2, p, table);
  ops::check_linear_step(kName, query, key, value, state, key_weight, eps,
                         ops::feature_count(p));
  const Tensor output = at::empty(value.sizes(), value.options());
  const Tensor built = ops::table_or_built(query, p, table);
  const bool per_head = projection.dim() == 3;
  const Tensor queries = evenly_spaced(query, per_head),
               keys = evenly_spaced(key, per_head);
  const auto run = [&]<typename T>() {
    const PreparedParameters<T> prepared(p, built, nonneg);
    advance_states<T>(
        UniversalFeatures<T>(prepared, token_rows<T>(queries, per_head)),
        UniversalFeatures<T>(prepared, token_rows<T>(keys, per_head)), value,
        state, key_weight, true, eps, per_head, output);
  };
  if (query.scalar_type() == at::kDouble) {
    run.template operator()<double>();
  } else {
    run.template operator()<float>();
  }
  return output;
}

TORCH_LIBRARY_IMPL(luna, CPU, m) {
  m.impl("_universal_attention_forward", forward);
  m.impl("universal_attention_backward", backward);
  m.impl("universal_attention_step", step);
}

}  // namespace
}  // namespace luna::cpu
