// Wrong input is an error that names the op, the argument and the value.

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <luna/ops.h>

#include <cmath>

#include "support/mistakes.h"
#include "support/steps.h"

namespace luna::testing {
namespace {

using at::Tensor;

TEST(BadInput, LinearAttention) {
  const std::string op = "linear_attention";
  Random random(101);
  std::vector<Mistake> list = mistakes_with({"query", "key", "value"});
  add(list, {size("query", 3), size("key", 0), size("key", 1), size("key", 3),
             size("value", 0), size("value", 1), size("value", 2),
             fewer_key_heads(1)});
  add(list, weight_mistakes());
  add(list, state_mistakes("state"));
  expect_refused(
      op, linear_problem({.weight = Weight::kFloat, .state = true}, random),
      list);

  LinearSpec packed{.lengths_q = {40, 10}, .lengths_k = {40, 10}};
  list = packing_mistakes("cu_seqlens_q");
  add(list, packing_mistakes("cu_seqlens_k"));
  add(list, {several_samples("cu_seqlens"),
             {"one of two",
              [](Arguments& a) { a.erase("cu_seqlens_k"); },
              {"cu_seqlens_k"}},
             {"other one of two",
              [](Arguments& a) { a.erase("cu_seqlens_q"); },
              {"cu_seqlens_q"}},
             {"another number of sequences",
              [](Arguments& a) {
                a["cu_seqlens_k"] = at::tensor({0, 20, 40, 50}, at::kLong);
              },
              {"cu_seqlens_k", "4|3"}}});
  expect_refused(op, linear_problem(packed, random), list);

  packed.causal = true;
  expect_refused(op, linear_problem(packed, random),
                 {{"causal with unequal lengths",
                   [](Arguments& a) {
                     a["cu_seqlens_k"] = at::tensor({0, 20, 50}, at::kLong);
                     a["cu_seqlens_q"] = at::tensor({0, 40, 50}, at::kLong);
                   },
                   {"causal", "cu_seqlens"}}});
  expect_refused(op, linear_problem({.causal = true}, random),
                 {{"causal with more keys than queries",
                   [](Arguments& a) {
                     a["key"] = resized(a["key"], 2, 37);
                     a["value"] = resized(a["value"], 2, 37);
                   },
                   {"causal", "37"}}});
}

TEST(BadInput, Eps) {
  Random random(102);
  const Problem linear =
      linear_problem({.n = 1, .m = 1, .state = true}, random);
  const Problem universal =
      universal_problem({.n = 1, .m = 1, .state = true}, random);
  const Arguments a = linear.arguments, u = universal.arguments;
  for (double eps : {0.0, -0.375, kNaN}) {
    SCOPED_TRACE(eps);
    const std::vector<std::string> parts{"eps", std::isnan(eps) ? "nan|NaN"
                                                : eps == 0      ? "0"
                                                                : "-0.375"};
    expect_refused(
        "linear_attention",
        [&] {
          ops::linear_attention(a.at("query"), a.at("key"), a.at("value"),
                                {.eps = eps});
        },
        parts, Kind::kValue);
    expect_refused(
        "linear_attention_step",
        [&] {
          ops::linear_attention_step(token(a, "query", 0), token(a, "key", 0),
                                     token(a, "value", 0), a.at("state"),
                                     {.eps = eps});
        },
        parts, Kind::kValue);
    expect_refused(
        "universal_attention",
        [&] {
          ops::universal_attention(u.at("query"), u.at("key"), u.at("value"),
                                   parameters_of(u), {.eps = eps});
        },
        parts, Kind::kValue);
    expect_refused(
        "universal_attention_step",
        [&] {
          ops::universal_attention_step(
              token(u, "query", 0), token(u, "key", 0), token(u, "value", 0),
              u.at("state"), parameters_of(u), {.eps = eps});
        },
        parts, Kind::kValue);
  }
}

TEST(BadInput, UniversalAttention) {
  const std::string op = "universal_attention";
  Random random(103);
  UniversalSpec spec{
      .sizes = {.channels = 3}, .weight = Weight::kFloat, .state = true};
  std::vector<Mistake> list = mistakes_with({"query", "key", "value"});
  add(list, {size("query", 3, "query|projection"), size("key", 0),
             size("key", 1), size("key", 3), size("value", 0), size("value", 1),
             size("value", 2), fewer_key_heads(1)});
  add(list, weight_mistakes());
  add(list, state_mistakes("state"));
  add(list, parameter_mistakes());
  expect_refused(op, universal_problem(spec, random), list);

  UniversalSpec packed{
      .sizes = {.channels = 3}, .lengths_q = {40, 10}, .lengths_k = {40, 10}};
  list = packing_mistakes("cu_seqlens_q");
  add(list, packing_mistakes("cu_seqlens_k"));
  add(list, {several_samples("cu_seqlens")});
  expect_refused(op, universal_problem(packed, random), list);
  packed.causal = true;
  expect_refused(op, universal_problem(packed, random),
                 {{"causal with unequal lengths",
                   [](Arguments& a) {
                     a["cu_seqlens_k"] = at::tensor({0, 20, 50}, at::kLong);
                     a["cu_seqlens_q"] = at::tensor({0, 40, 50}, at::kLong);
                   },
                   {"causal", "cu_seqlens"}}});
}

TEST(BadInput, FeatureMap) {
  Random random(104);
  const FeatureMapSpec spec{.sizes = {.channels = 3}};
  std::vector<Mistake> list = parameter_mistakes();
  add(list, {size("x", 3, "x|projection"), integers("x"), last_stride("x"),
             device("x")});
  expect_refused("feature_map", feature_map_problem(spec, random), list);
  const FeatureMapSpec per_head{.sizes = {.heads = 2}};
  expect_refused("feature_map", feature_map_problem(per_head, random),
                 {{"no heads for a projection per head",
                   [](Arguments& a) {
                     a["x"] = a["x"].reshape({-1, 4});
                   },
                   {"x", kShape}},
                  size("x", 1, "x|projection")});
}

TEST(BadInput, Table) {
  Random random(105);
  const auto p = random_parameters(random, {});
  const auto other = random_parameters(random, {.channels = 4, .hidden = 9});
  const Tensor x = random.normal({3, 4});
  const Tensor table =
      ops::universal_table(other.hidden_weight, other.hidden_bias,
                           other.output_weight, other.output_bias);
  expect_refused(
      "feature_map", [&] { ops::feature_map(x, p, {.table = table}); },
      {"table", std::to_string(table.numel())}, Kind::kValue);
  const Tensor right = ops::universal_table(p.hidden_weight, p.hidden_bias,
                                            p.output_weight, p.output_bias);
  expect_refused(
      "feature_map",
      [&] { ops::feature_map(x, p, {.table = right.to(at::kLong)}); },
      {"table"}, Kind::kType);
  expect_refused(
      "universal_table",
      [&] {
        ops::universal_table(p.hidden_weight, like(p.hidden_bias, {2, 37}),
                             p.output_weight, p.output_bias);
      },
      {"hidden_bias", "37"}, Kind::kValue);
}

}  // namespace
}  // namespace luna::testing
