// Wrong input of the ops of nested attention.

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <luna/ops.h>

#include <cmath>

#include "support/mistakes.h"

namespace luna::testing {
namespace {

using at::Tensor;

TEST(BadInput, PackAttention) {
  const std::string op = "pack_attention";
  Random random(106);
  std::vector<Mistake> list = mistakes_with({"query", "key", "value"});
  add(list, {size("query", 0), size("query", 3), size("key", 1), size("key", 3),
             size("value", 0), size("value", 1), size("value", 2),
             fewer_key_heads(1)});
  add(list, weight_mistakes());
  add(list, seed_mistakes());
  expect_refused(
      op, pack_problem({.weight = Weight::kFloat, .dropout_p = 0.5}, random),
      list);
  list = packing_mistakes("cu_seqlens_k");
  add(list, {size("query", 0),
             {"keys of several samples",
              [](Arguments& a) {
                a["key"] = resized(a["key"], 0, 37);
                a["value"] = resized(a["value"], 0, 37);
              },
              {"cu_seqlens_k", "37"}}});
  expect_refused(op, pack_problem({.lengths_k = {40, 10}}, random), list);
}

TEST(BadInput, UnpackAttention) {
  const std::string op = "unpack_attention";
  Random random(107);
  std::vector<Mistake> list = mistakes_with({"query", "key", "value"});
  add(list, {size("query", 3), size("key", 0), size("key", 1), size("key", 3),
             size("value", 0), size("value", 1), size("value", 2),
             fewer_key_heads(1)});
  add(list, weight_mistakes());
  add(list, seed_mistakes());
  expect_refused(
      op,
      unpack_problem({.l = 6, .weight = Weight::kFloat, .dropout_p = 0.5},
                     random),
      list);
  list = packing_mistakes("cu_seqlens_q");
  add(list, {size("key", 0),
             {"queries of several samples",
              [](Arguments& a) { a["query"] = resized(a["query"], 0, 37); },
              {"cu_seqlens_q", "37"}}});
  expect_refused(op, unpack_problem({.lengths_q = {40, 10}}, random), list);
}

TEST(BadInput, Dropout) {
  Random random(108);
  for (double p : {-0.375, 1.0, 1.5, kNaN}) {
    SCOPED_TRACE(p);
    const std::vector<std::string> parts{"dropout_p", std::isnan(p) ? "nan|NaN"
                                                      : p < 0       ? "-0.375"
                                                      : p == 1      ? "1"
                                                                    : "1.5"};
    auto refused = [&](const std::string& op, const Problem& problem) {
      expect_refused(
          op, [&] { problem.op(problem.arguments); }, parts, Kind::kValue);
    };
    refused("pack_attention", pack_problem({.dropout_p = p}, random));
    refused("unpack_attention", unpack_problem({.dropout_p = p}, random));
    refused("nested_causal_attention",
            nested_problem({.dropout_p = p}, random));
  }
  const Tensor x = random.normal({1, 1, 3, 4});
  expect_refused(
      "pack_attention",
      [&] { ops::pack_attention(x, x, x, {.dropout_p = 0.5}); },
      {"seed", "0.5"}, Kind::kValue);
  expect_refused(
      "unpack_attention",
      [&] { ops::unpack_attention(x, x, x, {.dropout_p = 0.5}); },
      {"seed", "0.5"}, Kind::kValue);
  expect_refused(
      "nested_causal_attention",
      [&] { ops::nested_causal_attention(x, x, x, x, x, {.dropout_p = 0.5}); },
      {"seed", "0.5"}, Kind::kValue);
}

TEST(BadInput, NestedCausalAttention) {
  const std::string op = "nested_causal_attention";
  Random random(109);
  std::vector<Mistake> list =
      mistakes_with({"query", "pack_key", "key", "value", "packed_query"});
  for (const char* name : {"pack_key", "key"}) {
    add(list, {size(name, 0), size(name, 1), size(name, 2), size(name, 3)});
  }
  add(list, {size("query", 3), size("value", 0), size("value", 1),
             size("value", 2), size("packed_query", 0), size("packed_query", 1),
             size("packed_query", 3)});
  add(list, state_mistakes("key_state"));
  add(list, state_mistakes("value_state"));
  for (const char* name : {"key_state", "value_state", "count"}) {
    add(list, {{"a part of the state is missing",
                [=](Arguments& a) { a.erase(name); },
                {name}}});
  }
  add(list, {size("count", 0),
             device("count"),
             {"count dtype",
              [](Arguments& a) { a["count"] = a["count"].to(at::kInt); },
              {"count", "Int|int32"},
              Kind::kType},
             {"mask dtype",
              [](Arguments& a) {
                a["packed_mask"] = a["packed_mask"].to(at::kFloat);
              },
              {"packed_mask", "Float|float"},
              Kind::kType},
             size("packed_mask", 0),
             size("packed_mask", 1),
             device("packed_mask")});
  add(list, seed_mistakes());
  expect_refused(
      op,
      nested_problem({.mask = true, .state = true, .dropout_p = 0.5}, random),
      list);

  list = packing_mistakes("cu_seqlens");
  add(list, {several_samples("cu_seqlens"), size("packed_query", 0)});
  expect_refused(op, nested_problem({.lengths = {40, 10}}, random), list);

  const Problem relu = nested_problem({.activation = "relu"}, random);
  expect_refused(
      op, [&] { relu.op(relu.arguments); },
      {"activation", "relu", "softplus", "elu"}, Kind::kValue);
}

}  // namespace
}  // namespace luna::testing
