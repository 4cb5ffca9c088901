// linear_attention on the CPU: linear_sums.h over features that are given.

#include "ops/linear_sums.h"

#include <torch/library.h>

#include "ops/cpu/linear_step.h"
#include "ops/cpu/linear_sums.h"

namespace luna::cpu {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

std::tuple<Tensor, Tensor, Tensor, Tensor> forward(
    const Tensor& query, const Tensor& key, const Tensor& value,
    const OptionalTensor& key_weight, const OptionalTensor& cu_seqlens_q,
    const OptionalTensor& cu_seqlens_k, bool causal, bool normalize, double eps,
    const OptionalTensor& state, bool save) {
  const ops::LinearSums sums{query,        key,          value,  key_weight,
                             cu_seqlens_q, cu_seqlens_k, causal, normalize,
                             eps,          state};
  ops::check_linear_sums("linear_attention", sums, query.size(-1));
  const auto run = [&]<typename T>() {
    return forward_sums<T>(sums, GivenFeatures<T>(query, Tensor()),
                           GivenFeatures<T>(key, Tensor()), save);
  };
  const auto r = query.scalar_type() == at::kDouble
                     ? run.template operator()<double>()
                     : run.template operator()<float>();
  return {r.output, r.state, r.denominator, r.segment_states};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> backward(
    const Tensor& grad_output, const OptionalTensor& grad_state,
    const Tensor& query, const Tensor& key, const Tensor& value,
    const OptionalTensor& key_weight, const OptionalTensor& cu_seqlens_q,
    const OptionalTensor& cu_seqlens_k, bool causal, bool normalize, double eps,
    const OptionalTensor& state, const Tensor& output,
    const Tensor& final_state, const Tensor& denominator,
    const Tensor& segment_states) {
  const ops::LinearSums sums{query,        key,          value,  key_weight,
                             cu_seqlens_q, cu_seqlens_k, causal, normalize,
                             eps,          state};
  const Tensor grad_query = on_huge_pages(ops::empty_heads(query));
  const Tensor grad_key = on_huge_pages(ops::empty_heads(key));
  const auto run = [&]<typename T>() {
    using Features = GivenFeatures<T>;
    return backward_sums<T>(
               sums, {output, final_state, denominator, segment_states},
               grad_output, grad_state.value_or(Tensor()),
               Features(query, grad_query), Features(key, grad_key),
               [] { return typename Features::Sink(); })
        .first;
  };
  const SumsGradients g = query.scalar_type() == at::kDouble
                              ? run.template operator()<double>()
                              : run.template operator()<float>();
  const auto or_empty = [&](const Tensor& x) {
    return x.defined() ? x : at::empty({0}, query.options());
  };
  return {grad_query, grad_key, g.value, or_empty(g.key_weight),
          or_empty(g.state)};
}

Tensor step(const Tensor& query, const Tensor& key, const Tensor& value,
            Tensor& state, const OptionalTensor& key_weight, bool normalize,
            double eps) {
  ops::check_linear_step("linear_attention_step", query, key, value, state,
                         key_weight, eps, query.size(-1));
  const Tensor output = at::empty(value.sizes(), value.options());
  const Tensor queries = evenly_spaced(query, false),
               keys = evenly_spaced(key, false);
  const auto run = [&]<typename T>() {
    advance_states<T>(GivenFeatures<T>(token_rows<T>(queries, false)),
                      GivenFeatures<T>(token_rows<T>(keys, false)), value,
                      state, key_weight, normalize, eps, false, output);
  };
  if (query.scalar_type() == at::kDouble) {
    run.template operator()<double>();
  } else {
    run.template operator()<float>();
  }
  return output;
}

TORCH_LIBRARY_IMPL(luna, CPU, m) {
  m.impl("_linear_attention_forward", forward);
  m.impl("linear_attention_backward", backward);
  m.impl("linear_attention_step", step);
}

}  // namespace
}  // namespace luna::cpu
