// Wrong input of the ops that advance a state.

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <luna/ops.h>

#include "support/mistakes.h"
#include "support/steps.h"

namespace luna::testing {
namespace {

using at::Tensor;

/// The mistakes of tokens [B,H,width], given as [B,H,1,width].
std::vector<Mistake> token_mistakes(const std::vector<const char*>& names) {
  std::vector<Mistake> list;
  for (const char* name : names) {
    // A width of 37 asks for a state of another shape (38: the normaliser).
    const std::string either = std::string(name) + "|state|projection";
    add(list, {size(name, 3, either, "37|38"), integers(name), device(name)});
  }
  for (size_t i = 1; i < names.size(); ++i) {
    add(list, {size(names[i], 0), size(names[i], 1), dtype(names[i])});
  }
  return list;
}

/// What the steps of a sum with one state have in common.
std::vector<Mistake> linear_step_mistakes() {
  std::vector<Mistake> list = token_mistakes({"query", "key", "value"});
  add(list, state_mistakes("state"));
  auto weight = [](double value) {
    return [value](Arguments& a) { a["key_weight"] = at::full({2, 1}, value); };
  };
  add(list, {{"negative weight", weight(-0.375), {"key_weight", "-0.375"}},
             {"weight NaN", weight(kNaN), {"key_weight", "nan|NaN"}},
             size("key_weight", 0),
             {"weight heads",
              [](Arguments& a) {
                a["key_weight"] = at::ones({2, 37, 1});
              },
              {"key_weight", "37"}}});
  return list;
}

TEST(BadInput, LinearAttentionStep) {
  Random random(110);
  expect_refused(
      "linear_attention_step",
      linear_step_problem(
          {.n = 1, .m = 1, .weight = Weight::kFloat, .state = true}, random),
      linear_step_mistakes());
}

TEST(BadInput, UniversalAttentionStep) {
  Random random(111);
  std::vector<Mistake> list = linear_step_mistakes();
  add(list, parameter_mistakes());
  expect_refused("universal_attention_step",
                 universal_step_problem({.n = 1,
                                         .m = 1,
                                         .sizes = {.channels = 3},
                                         .weight = Weight::kFloat,
                                         .state = true},
                                        random, at::kDouble),
                 list);
}

TEST(BadInput, NestedCausalAttentionStep) {
  Random random(112);
  std::vector<Mistake> list =
      token_mistakes({"query", "pack_key", "key", "value"});
  add(list, state_mistakes("key_state"));
  add(list, state_mistakes("value_state"));
  add(list, {size("count", 0),
             size("packed_mask", 1),
             size("packed_query", 0),
             size("packed_query", 3),
             {"count dtype",
              [](Arguments& a) { a["count"] = a["count"].to(at::kInt); },
              {"count", "Int|int32"},
              Kind::kType}});
  expect_refused(
      "nested_causal_attention_step",
      nested_step_problem({.n = 1, .mask = true, .state = true}, random), list);
  const Problem relu = nested_step_problem(
      {.n = 1, .state = true, .activation = "relu"}, random);
  expect_refused(
      "nested_causal_attention_step", [&] { relu.op(relu.arguments); },
      {"activation", "relu", "softplus", "elu"}, Kind::kValue);
}

TEST(BadInput, StepsNeedAUnitLastStride) {
  Random random(113);
  const Arguments a =
      linear_problem({.n = 1, .m = 1, .state = true}, random).arguments;
  Tensor state = sideways(a.at("state"));
  expect_refused(
      "linear_attention_step",
      [&] {
        ops::linear_attention_step(token(a, "query", 0), token(a, "key", 0),
                                   token(a, "value", 0), state);
      },
      {"state", "stride"}, Kind::kValue);
  expect_refused(
      "linear_attention_step",
      [&] {
        ops::linear_attention_step(sideways(token(a, "query", 0)),
                                   token(a, "key", 0), token(a, "value", 0),
                                   a.at("state"));
      },
      {"query", "stride"}, Kind::kValue);
}

TEST(BadInput, RefusalLeavesTheStateAlone) {
  Random random(114);
  Arguments a =
      linear_problem({.n = 1, .m = 1, .weight = Weight::kFloat, .state = true},
                     random)
          .arguments;
  const Tensor before = a.at("state").clone();
  EXPECT_THROW(
      ops::linear_attention_step(
          token(a, "query", 0), token(a, "key", 0), token(a, "value", 0),
          a.at("state"), {.key_weight = at::full({2}, -1.0, at::kDouble)}),
      c10::ValueError);
  expect_same(a.at("state"), before, "state");
}

}  // namespace
}  // namespace luna::testing
