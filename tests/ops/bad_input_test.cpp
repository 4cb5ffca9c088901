// Wrong input is an error that names the op, the argument and the value.

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <luna/ops.h>

#include <cmath>
#include <limits>

#include "support/errors.h"
#include "support/steps.h"

namespace luna::testing {
namespace {

using at::Tensor;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

enum class Kind { kValue, kType, kAny };

/// One mistake in the arguments of a call, and what the message must hold.
struct Mistake {
  const char* what;
  std::function<void(Arguments&)> make;
  std::vector<std::string> parts;  ///< the name first; kShape: its shape
  Kind kind = Kind::kValue;
};

constexpr const char* kShape = "[shape]";

void expect_refused(const std::string& op, const std::function<void()>& call,
                    std::vector<std::string> parts, Kind kind) {
  parts.push_back(op);
  if (kind == Kind::kValue) expect_error<c10::ValueError>(call, parts);
  if (kind == Kind::kType) expect_error<c10::TypeError>(call, parts);
  if (kind == Kind::kAny) expect_error<c10::Error>(call, parts);
}

void expect_refused(const std::string& op, const Problem& problem,
                    const std::vector<Mistake>& mistakes) {
  const Arguments good = stored(problem.arguments, {at::kCPU, at::kFloat});
  ASSERT_NO_THROW(problem.op(good));
  for (const Mistake& mistake : mistakes) {
    SCOPED_TRACE(op + ": " + mistake.what);
    Arguments bad = good;
    mistake.make(bad);
    std::vector<std::string> parts = mistake.parts;
    for (std::string& part : parts) {
      if (part != kShape) continue;
      std::ostringstream shape;
      shape << bad.at(parts[0]).sizes();
      part = shape.str();
    }
    expect_refused(
        op, [&] { problem.op(bad); }, parts, mistake.kind);
  }
}

Tensor like(const Tensor& tensor, std::vector<int64_t> sizes) {
  return at::ones(sizes, tensor.options());
}

/// The tensor with another size at `dim`.
Tensor resized(const Tensor& tensor, int64_t dim, int64_t size) {
  std::vector<int64_t> sizes = tensor.sizes().vec();
  sizes[dim < 0 ? dim + tensor.dim() : dim] = size;
  return like(tensor, sizes);
}

/// The same numbers, the last two axes swapped in memory.
Tensor sideways(const Tensor& tensor) {
  return tensor.transpose(-1, -2).contiguous().transpose(-1, -2);
}

Mistake rank(const char* name) {
  return {"rank", [=](Arguments& a) { a[name] = a[name][0]; }, {name, kShape}};
}
Mistake dtype(const char* name) {
  return {"dtype",
          [=](Arguments& a) { a[name] = a[name].to(at::kDouble); },
          {name, "Double|double|float64"},
          Kind::kType};
}
Mistake integers(const char* name) {
  return {"integers",
          [=](Arguments& a) { a[name] = a[name].to(at::kLong); },
          {name, "Long|long|int64"},
          Kind::kType};
}
/// Where two sizes do not fit, the message may blame either ("this|that").
Mistake size(const char* name, int64_t dim, const std::string& either = "",
             const std::string& value = "37") {
  return {"size",
          [=](Arguments& a) { a[name] = resized(a[name], dim, 37); },
          {either.empty() ? name : either, value}};
}
Mistake last_stride(const char* name) {
  return {"last stride",
          [=](Arguments& a) { a[name] = sideways(a[name]); },
          {name, "stride"}};
}
Mistake device(const char* name) {
  return {"device",
          [=](Arguments& a) { a[name] = a[name].to(at::kMeta); },
          {name, "meta"},
          Kind::kAny};
}

/// The mistakes that can be made with any tensor of [B,H,length,width].
std::vector<Mistake> mistakes_with(const std::vector<const char*>& names) {
  std::vector<Mistake> list;
  for (const char* name : names) {
    for (const auto& make : {rank, integers, last_stride, device}) {
      list.push_back(make(name));
    }
  }
  // The first sets the dtype, the rest must have the same.
  for (size_t i = 1; i < names.size(); ++i) list.push_back(dtype(names[i]));
  return list;
}

void add(std::vector<Mistake>& list, const std::vector<Mistake>& more) {
  list.insert(list.end(), more.begin(), more.end());
}

/// key_weight [2,6] or so for a problem with 2 samples.
std::vector<Mistake> weight_mistakes() {
  auto with = [](double value) {
    return [value](Arguments& a) {
      a["key_weight"] = a["key_weight"].clone();
      a["key_weight"][1][2] = value;
    };
  };
  return {
      {"negative", with(-0.375), {"key_weight", "-0.375"}},
      {"NaN", with(kNaN), {"key_weight", "nan|NaN"}},
      {"length",
       [](Arguments& a) { a["key_weight"] = resized(a["key_weight"], 1, 37); },
       {"key_weight", "37"}},
      {"batch",
       [](Arguments& a) { a["key_weight"] = resized(a["key_weight"], 0, 37); },
       {"key_weight", "37"}},
      {"rank",
       [](Arguments& a) { a["key_weight"] = a["key_weight"][0]; },
       {"key_weight", kShape}},
      {"heads",
       [](Arguments& a) {
         a["key_weight"] = a["key_weight"].unsqueeze(1).repeat({1, 37, 1});
       },
       {"key_weight", "37"}},
      integers("key_weight"),
      device("key_weight")};
}

/// For a problem of packed sequences with lengths {40, 10}.
std::vector<Mistake> packing_mistakes(const char* name) {
  auto with = [name](std::vector<int64_t> ends) {
    return [=](Arguments& a) { a[name] = at::tensor(ends, at::kLong); };
  };
  return {{"falls", with({0, 57, 50}), {name, "57"}},
          {"not from 0", with({3, 40, 50}), {name, "3"}},
          {"past the end", with({0, 40, 97}), {name, "97"}},
          {"short of the end", with({0, 40, 47}), {name, "47"}},
          {"negative", with({0, -7, 50}), {name, "-7"}},
          {"nothing", with({}), {name}},
          {"rank",
           [name](Arguments& a) { a[name] = a[name].unsqueeze(0); },
           {name, kShape}},
          {"dtype",
           [name](Arguments& a) { a[name] = a[name].to(at::kFloat); },
           {name, "Float|float"},
           Kind::kType},
          {"int16",
           [name](Arguments& a) { a[name] = a[name].to(at::kShort); },
           {name, "Short|short|int16"},
           Kind::kType},
          device(name)};
}

Mistake several_samples(const char* cu_seqlens) {
  return {"batch above 1",
          [](Arguments& a) {
            for (const char* name : {"query", "pack_key", "key", "value"}) {
              if (a.count(name)) a[name] = resized(a[name], 0, 37);
            }
          },
          {cu_seqlens, "37"}};
}

std::vector<Mistake> state_mistakes(const char* name) {
  return {size(name, 0), size(name, 1), size(name, 2), size(name, 3),
          rank(name),    dtype(name),   device(name)};
}

Mistake fewer_key_heads(int64_t heads) {
  return {"fewer key heads than query heads",
          [=](Arguments& a) {
            for (const char* name : {"key", "value"}) {
              a[name] = a[name].narrow(1, 0, heads);
            }
          },
          {"key", "expand"}};
}

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

/// For M = 3, d = 4, L = 3, h = 5 and H = 2.
std::vector<Mistake> parameter_mistakes() {
  std::vector<Mistake> list;
  for (const char* name : {"projection", "projection_bias", "hidden_weight",
                           "hidden_bias", "output_weight", "output_bias"}) {
    list.push_back(dtype(name));
    list.push_back(integers(name));
    list.push_back(device(name));
    list.push_back({"rank",
                    [=](Arguments& a) {
                      a[name] = a[name].expand({2, 2, 2, -1, -1}).clone();
                    },
                    {name, kShape}});
  }
  for (const char* name : {"projection_bias", "output_bias"}) {
    list.erase(std::remove_if(list.begin(), list.end(),
                              [&](const Mistake& m) {
                                return std::string(m.what) == "rank" &&
                                       m.parts[0] == name;
                              }),
               list.end());
  }
  const std::string psi = "hidden_weight|hidden_bias|output_weight|output_bias";
  add(list, {size("projection", 1, "projection|query|x"),
             size("projection_bias", 0),
             size("hidden_weight", 1, psi),
             size("hidden_bias", 0, psi),
             size("hidden_bias", 1, psi),
             size("output_weight", 0, psi + "|state", "37|111"),
             size("output_weight", 1, psi),
             size("output_bias", 0, psi),
             {"neither one trunk nor one a channel",
              [](Arguments& a) {
                a["hidden_weight"] = resized(a["hidden_weight"], 0, 2);
                a["hidden_bias"] = resized(a["hidden_bias"], 0, 2);
              },
              {"hidden_weight|hidden_bias", "2", "3"}},
             {"projection of other heads",
              [](Arguments& a) {
                a["projection"] = like(a["projection"], {37, 3, 4});
                a["projection_bias"] = like(a["projection_bias"], {37, 3});
              },
              {"projection", "37"}},
             {"bias per head, projection not",
              [](Arguments& a) {
                a["projection_bias"] = like(a["projection_bias"], {2, 3});
              },
              {"projection_bias"}}});
  return list;
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

std::vector<Mistake> seed_mistakes() {
  return {{"seed size",
           [](Arguments& a) { a["seed"] = like(a["seed"], {37}); },
           {"seed", "37"}},
          {"seed rank",
           [](Arguments& a) {
             a["seed"] = like(a["seed"], {1, 2});
           },
           {"seed"}},
          {"seed dtype",
           [](Arguments& a) { a["seed"] = a["seed"].to(at::kInt); },
           {"seed", "Int|int32"},
           Kind::kType},
          device("seed")};
}

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
