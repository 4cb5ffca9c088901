#include "support/steps.h"

#include <ATen/ATen.h>

namespace luna::testing {

using at::Tensor;

Tensor token(const Arguments& arguments, const std::string& name, int64_t t) {
  return arguments.at(name).select(2, t);
}

std::optional<Tensor> token_weight(const Arguments& arguments, int64_t t) {
  const auto weight = find(arguments, "key_weight");
  return weight ? std::optional(weight->select(-1, t)) : std::nullopt;
}

namespace {

Arguments relayout_tokens(const Arguments& given, Layout layout) {
  Arguments a = given;
  for (auto& [name, tensor] : a) tensor = relayout(tensor, layout);
  return a;
}

}  // namespace

Problem linear_step_problem(const LinearSpec& spec, Random& random) {
  Problem problem = linear_problem(spec, random);
  problem.op = [spec](const Arguments& given) -> Tensors {
    const Arguments a = relayout_tokens(given, spec.layout);
    Tensor state = a.at("state").clone(at::MemoryFormat::Contiguous);
    const Tensor output = ops::linear_attention_step(
        token(a, "query", 0), token(a, "key", 0), token(a, "value", 0), state,
        {.key_weight = token_weight(a, 0),
         .normalize = spec.normalize,
         .eps = spec.eps});
    return {output.unsqueeze(2), state};
  };
  return problem;
}

Problem universal_step_problem(const UniversalSpec& spec, Random& random,
                               at::ScalarType dtype) {
  Problem problem = universal_problem(spec, random, dtype);
  problem.op = [spec](const Arguments& given) -> Tensors {
    const Arguments a = relayout_tokens(given, spec.layout);
    const auto p = parameters_of(a);
    ops::UniversalAttentionStepOptions options;
    options.key_weight = token_weight(a, 0);
    options.nonneg = spec.nonneg;
    options.eps = spec.eps;
    if (spec.table) {
      options.table = ops::universal_table(p.hidden_weight, p.hidden_bias,
                                           p.output_weight, p.output_bias);
    }
    Tensor state = a.at("state").clone(at::MemoryFormat::Contiguous);
    const Tensor output =
        ops::universal_attention_step(token(a, "query", 0), token(a, "key", 0),
                                      token(a, "value", 0), state, p, options);
    return {output.unsqueeze(2), state};
  };
  return problem;
}

Problem nested_step_problem(const NestedSpec& spec, Random& random) {
  Problem problem = nested_problem(spec, random);
  problem.op = [spec](const Arguments& given) -> Tensors {
    const Arguments a = relayout_tokens(given, spec.layout);
    Tensor key_state = a.at("key_state").clone(at::MemoryFormat::Contiguous);
    Tensor value_state =
        a.at("value_state").clone(at::MemoryFormat::Contiguous);
    Tensor count = a.at("count").clone(at::MemoryFormat::Contiguous);
    const Tensor output = ops::nested_causal_attention_step(
        token(a, "query", 0), token(a, "pack_key", 0), token(a, "key", 0),
        token(a, "value", 0), a.at("packed_query"), key_state, value_state,
        count,
        {.packed_mask = find(a, "packed_mask"),
         .activation = spec.activation,
         .scale = spec.scale});
    return {output.unsqueeze(2), key_state, value_state, count};
  };
  return problem;
}

}  // namespace luna::testing
