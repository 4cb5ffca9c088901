// The ops that advance a state in place by one token.

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>
#include <luna/ops.h>

#include "support/steps.h"

namespace luna::testing {
namespace {

using at::Tensor;

const std::vector<Weight> kWeights{Weight::kNone, Weight::kBool, Weight::kFloat,
                                   Weight::kBoolPerHead, Weight::kFloatPerHead};

/// The first `n` tokens of a problem's arguments.
Arguments prompt_of(const Arguments& arguments, int64_t n) {
  Arguments a = arguments;
  for (const char* name : {"query", "pack_key", "key", "value"}) {
    if (a.count(name)) a[name] = a[name].narrow(2, 0, n);
  }
  if (a.count("key_weight")) a["key_weight"] = a["key_weight"].narrow(-1, 0, n);
  return a;
}

class Step : public OpTest {};
LUNA_ALL_CASES(Step);

TEST_P(Step, LinearMatchesReference) {
  Random random(81);
  for (Weight weight : kWeights) {
    for (bool normalize : {false, true}) {
      for (Layout layout :
           {Layout::kContiguous, Layout::kHeadsInside, Layout::kSliced}) {
        const LinearSpec spec{.batch = 3,
                              .n = 1,
                              .m = 1,
                              .width = 5,
                              .weight = weight,
                              .normalize = normalize,
                              .state = true,
                              .layout = layout};
        SCOPED_TRACE(describe(spec));
        expect_outputs_match(GetParam(), linear_step_problem(spec, random));
      }
    }
  }
}

TEST_P(Step, UniversalMatchesReference) {
  Random random(82);
  for (Weight weight : kWeights) {
    for (bool nonneg : {false, true}) {
      for (bool shared : {false, true}) {
        const UniversalSpec spec{
            .batch = 3,
            .n = 1,
            .m = 1,
            .sizes = {.width = 5,
                      .channels = 3,
                      .heads = nonneg ? 2 : 0,
                      .shared_trunk = shared},
            .weight = weight,
            .nonneg = nonneg,
            .state = true,
            .table = shared,
            .layout = shared ? Layout::kSliced : Layout::kContiguous};
        SCOPED_TRACE(describe(spec));
        expect_outputs_match(
            GetParam(), universal_step_problem(spec, random, GetParam().dtype));
      }
    }
  }
}

// States of 64 x 64, which have a kernel of their own on the GPU: one for few
// states and one for many, in which blocks have several in the end, more than
// they have room for at once.
TEST_P(Step, SquareStatesMatchReference) {
  Random random(88);
  for (int64_t batch : {2, 70, 300, 1200}) {
    for (Weight weight :
         {Weight::kNone, Weight::kBool, Weight::kFloatPerHead}) {
      // The CPU's kernels know no blocks.
      const bool many = batch == 1200;
      if (many && GetParam().device == at::kCPU) continue;
      const LinearSpec linear{.batch = batch,
                              .n = 1,
                              .m = 1,
                              .width = 64,
                              .value_width = 64,
                              .weight = weight,
                              .normalize = weight == Weight::kNone,
                              .state = true,
                              .layout = Layout::kSliced};
      SCOPED_TRACE(describe(linear));
      expect_outputs_match(GetParam(), linear_step_problem(linear, random));
      if (many) continue;  // of so many numbers some are near a knot
      const UniversalSpec universal{.batch = batch,
                                    .n = 1,
                                    .m = 1,
                                    .value_width = 64,
                                    .sizes = {.width = 64,
                                              .projections = 8,
                                              .channels = 8,
                                              .hidden = batch >= 300 ? 2 : 8,
                                              .heads = batch == 2 ? 2 : 0},
                                    .weight = weight,
                                    .state = true,
                                    .table = true};
      SCOPED_TRACE(describe(universal));
      expect_outputs_match(
          GetParam(),
          universal_step_problem(universal, random, GetParam().dtype));
    }
  }
}

TEST_P(Step, NestedMatchesReference) {
  Random random(83);
  for (const char* activation : {"softplus", "elu"}) {
    for (bool mask : {false, true}) {
      for (bool shared_query : {false, true}) {
        NestedSpec spec{.batch = 3,
                        .n = 1,
                        .l = 5,
                        .mask = mask,
                        .shared_query = shared_query,
                        .state = true,
                        .activation = activation};
        if (mask) spec.scale = 0.6;
        if (shared_query) spec.layout = Layout::kSliced;
        SCOPED_TRACE(describe(spec));
        expect_outputs_match(GetParam(), nested_step_problem(spec, random));
      }
    }
  }
}

// A GPU does not even write it back.
TEST_P(Step, WeightOfZeroLeavesTheState) {
  const c10::NoGradGuard no_grad;
  for (const int64_t width : {64, 24}) {
    Random random(90);
    const Problem problem = linear_step_problem({.n = 1,
                                                 .m = 1,
                                                 .width = width,
                                                 .value_width = width,
                                                 .weight = Weight::kBool,
                                                 .state = true},
                                                random);
    Arguments a = stored(problem.arguments, GetParam());
    Tensor state = a["state"];
    state[0][0][0][0] = -0.0;  // + 0 would lose the sign
    const Tensor before = state.clone();
    ops::linear_attention_step(
        token(a, "query", 0), token(a, "key", 0), token(a, "value", 0), state,
        {.key_weight = at::zeros({state.size(0)}, state.options())});
    expect_same(state, before, "state");
    if (GetParam().device == at::kCPU) continue;  // adds the 0
    EXPECT_TRUE(at::signbit(state[0][0][0][0]).item<bool>());
  }
}

// A count that does not lie in one piece is counted too.
TEST_P(Step, CountMayBeAView) {
  const c10::NoGradGuard no_grad;
  Random random(91);
  const Problem problem =
      nested_step_problem({.batch = 3, .n = 1, .state = true}, random);
  const Arguments a = stored(problem.arguments, GetParam());
  const Tensor counts = at::full(
      {3, 2}, 5, at::TensorOptions(at::kLong).device(GetParam().device));
  Tensor count = counts.select(1, 1);
  ops::nested_causal_attention_step(
      token(a, "query", 0), token(a, "pack_key", 0), token(a, "key", 0),
      token(a, "value", 0), a.at("packed_query"), a.at("key_state").clone(),
      a.at("value_state").clone(), count);
  EXPECT_EQ(counts.sum(0)[0].item<int64_t>(), 15);
  EXPECT_EQ(counts.sum(0)[1].item<int64_t>(), 18);
}

// As many slots and columns as translators have, fewer and more than a block
// has threads.
TEST_P(Step, NestedSizesMatchReference) {
  Random random(89);
  for (auto [l, width, value_width] : {std::tuple{16, 64, 64},
                                       {32, 64, 64},
                                       {1, 12, 40},
                                       {300, 64, 24},
                                       {33, 130, 300}}) {
    const NestedSpec spec{.n = 1,
                          .l = l,
                          .width = width,
                          .value_width = value_width,
                          .mask = true,
                          .shared_query = l == 16,
                          .state = true,
                          .layout = Layout::kHeadsInside};
    SCOPED_TRACE(describe(spec));
    expect_outputs_match(GetParam(), nested_step_problem(spec, random));
  }
}

// A prompt in one call, then steps: what one call over all tokens gives.

TEST_P(Step, LinearStepMatchesForward) {
  Random random(84);
  for (Weight weight : kWeights) {
    const LinearSpec spec{.n = 9, .m = 9, .weight = weight, .causal = true};
    SCOPED_TRACE(describe(spec));
    const Problem problem = linear_problem(spec, random);
    const Arguments a = stored(problem.arguments, GetParam());
    const Tensors whole = problem.op(a);
    const Tensors prompt = problem.op(prompt_of(a, 4));
    Tensor state = prompt[1];
    Tensors outputs{prompt[0]};
    for (int64_t t = 4; t < 9; ++t) {
      outputs.push_back(
          ops::linear_attention_step(token(a, "query", t), token(a, "key", t),
                                     token(a, "value", t), state,
                                     {.key_weight = token_weight(a, t)})
              .unsqueeze(2));
    }
    expect_close(at::cat(outputs, 2), whole[0], GetParam().agreement(),
                 "output");
    expect_close(state, whole[1], 1e-5, "state");
  }
}

TEST_P(Step, UniversalStepMatchesForward) {
  Random random(85);
  for (bool nonneg : {false, true}) {
    const UniversalSpec spec{.n = 9,
                             .m = 9,
                             .weight = Weight::kFloat,
                             .causal = true,
                             .nonneg = nonneg};
    SCOPED_TRACE(describe(spec));
    const Problem problem = universal_problem(spec, random, GetParam().dtype);
    const Arguments a = stored(problem.arguments, GetParam());
    const Tensors whole = problem.op(a);
    const Tensors prompt = problem.op(prompt_of(a, 4));
    Tensor state = prompt[1];
    Tensors outputs{prompt[0]};
    for (int64_t t = 4; t < 9; ++t) {
      outputs.push_back(
          ops::universal_attention_step(
              token(a, "query", t), token(a, "key", t), token(a, "value", t),
              state, parameters_of(a),
              {.key_weight = token_weight(a, t), .nonneg = nonneg})
              .unsqueeze(2));
    }
    expect_close(at::cat(outputs, 2), whole[0], GetParam().agreement(),
                 "output");
    expect_close(state, whole[1], 1e-5, "state");
  }
}

TEST_P(Step, NestedStepMatchesForward) {
  Random random(86);
  for (const char* activation : {"softplus", "elu"}) {
    const NestedSpec spec{
        .n = 9, .mask = true, .state = true, .activation = activation};
    SCOPED_TRACE(describe(spec));
    const Problem problem = nested_problem(spec, random);
    const Arguments a = stored(problem.arguments, GetParam());
    const Tensors whole = problem.op(a);
    const Tensors prompt = problem.op(prompt_of(a, 4));
    Tensor key_state = prompt[1], value_state = prompt[2], count = prompt[3];
    Tensors outputs{prompt[0]};
    for (int64_t t = 4; t < 9; ++t) {
      outputs.push_back(
          ops::nested_causal_attention_step(
              token(a, "query", t), token(a, "pack_key", t), token(a, "key", t),
              token(a, "value", t), a.at("packed_query"), key_state,
              value_state, count,
              {.packed_mask = a.at("packed_mask"), .activation = activation})
              .unsqueeze(2));
    }
    expect_close(at::cat(outputs, 2), whole[0], GetParam().agreement(),
                 "output");
    expect_close(key_state, whole[1], 1e-5, "key_state");
    expect_close(value_state, whole[2], 1e-5, "value_state");
    expect_same(count, whole[3], "count");
  }
}

/// Three steps that know their tensors, for the tests of how steps behave.
struct Steps {
  explicit Steps(at::ScalarType dtype = at::kFloat) {
    Random random(87);
    const Case c{at::kCPU, dtype, 0, 0};
    const int64_t width = 4;
    linear = stored(
        linear_problem({.n = 1, .m = 1, .width = width, .state = true}, random)
            .arguments,
        c);
    universal = stored(
        universal_problem({.n = 1, .m = 1, .state = true}, random).arguments,
        c);
    nested =
        stored(nested_problem({.n = 1, .state = true}, random).arguments, c);
  }

  Tensor step_linear(Tensor state, std::optional<Tensor> weight = {}) {
    return ops::linear_attention_step(
        token(linear, "query", 0), token(linear, "key", 0),
        token(linear, "value", 0), state, {.key_weight = weight});
  }
  Tensor step_universal(Tensor state, std::optional<Tensor> weight = {}) {
    return ops::universal_attention_step(
        token(universal, "query", 0), token(universal, "key", 0),
        token(universal, "value", 0), state, parameters_of(universal),
        {.key_weight = weight});
  }
  Tensor step_nested(Tensor key_state, Tensor value_state, Tensor count) {
    return ops::nested_causal_attention_step(
        token(nested, "query", 0), token(nested, "pack_key", 0),
        token(nested, "key", 0), token(nested, "value", 0),
        nested.at("packed_query"), key_state, value_state, count);
  }

  Arguments linear, universal, nested;
};

TEST(StepBehaviour, VersionCounterRises) {
  Steps steps;
  Tensor state = steps.linear["state"];
  const auto before = state._version();
  steps.step_linear(state);
  EXPECT_GT(state._version(), before);

  state = steps.universal["state"];
  const auto universal_before = state._version();
  steps.step_universal(state);
  EXPECT_GT(state._version(), universal_before);

  Tensor key_state = steps.nested["key_state"];
  Tensor value_state = steps.nested["value_state"];
  Tensor count = steps.nested["count"];
  const auto versions = {key_state._version(), value_state._version(),
                         count._version()};
  steps.step_nested(key_state, value_state, count);
  EXPECT_GT(key_state._version(), versions.begin()[0]);
  EXPECT_GT(value_state._version(), versions.begin()[1]);
  EXPECT_GT(count._version(), versions.begin()[2]);
}

TEST(StepBehaviour, OutputIsFresh) {
  Steps steps;
  Tensor state = steps.linear["state"];
  const Tensor first = steps.step_linear(state);
  const Tensor kept = first.clone();
  const Tensor second = steps.step_linear(state);
  EXPECT_FALSE(first.is_alias_of(second));
  EXPECT_FALSE(first.is_alias_of(state));
  expect_same(first, kept, "the first output");
}

TEST(StepBehaviour, StepUnderGradIsRefused) {
  Steps steps;
  for (const char* name : {"query", "key", "value", "state"}) {
    Steps fresh;
    fresh.linear[name].requires_grad_();
    const Tensor before = fresh.linear["state"].detach().clone();
    EXPECT_THROW(fresh.step_linear(fresh.linear["state"]), c10::Error) << name;
    expect_same(fresh.linear["state"].detach(), before, "state");
  }
  for (const char* name : {"query", "key", "value", "state", "projection",
                           "hidden_bias", "output_weight"}) {
    Steps fresh;
    fresh.universal[name].requires_grad_();
    EXPECT_THROW(fresh.step_universal(fresh.universal["state"]), c10::Error)
        << name;
  }
  for (const char* name : {"query", "pack_key", "key", "value", "packed_query",
                           "key_state", "value_state"}) {
    Steps fresh;
    fresh.nested[name].requires_grad_();
    EXPECT_THROW(
        fresh.step_nested(fresh.nested["key_state"],
                          fresh.nested["value_state"], fresh.nested["count"]),
        c10::Error)
        << name;
  }
}

TEST(StepBehaviour, ParametersThatTrainServeUnderNoGrad) {
  Steps steps, plain;
  for (const char* name : {"projection", "projection_bias", "hidden_weight",
                           "hidden_bias", "output_weight", "output_bias"}) {
    steps.universal[name].requires_grad_();
  }
  c10::NoGradGuard no_grad;
  expect_same(steps.step_universal(steps.universal["state"]),
              plain.step_universal(plain.universal["state"]), "output");
}

TEST(StepBehaviour, WorksInInferenceMode) {
  Steps outside;
  const Tensor want = outside.step_linear(outside.linear["state"]);
  const Tensor want_nested = outside.step_nested(outside.nested["key_state"],
                                                 outside.nested["value_state"],
                                                 outside.nested["count"]);
  c10::InferenceMode guard;
  Steps inside;
  expect_same(inside.step_linear(inside.linear["state"]), want, "output");
  expect_same(inside.linear["state"], outside.linear["state"], "state");
  expect_same(
      inside.step_nested(inside.nested["key_state"],
                         inside.nested["value_state"], inside.nested["count"]),
      want_nested, "output");
  expect_same(inside.nested["count"], outside.nested["count"], "count");
}

TEST(StepBehaviour, StateMayBeAView) {
  // The second of three slots in a pool of states.
  Steps steps, plain;
  auto pool_of = [](const Tensor& state) {
    std::vector<int64_t> sizes = state.sizes().vec();
    sizes.insert(sizes.begin(), 3);
    Tensor pool = at::full(sizes, 7, state.options());
    pool[1].copy_(state);
    return pool;
  };
  auto expect_only_the_view_changed = [](const Tensor& pool,
                                         const Tensor& state) {
    expect_same(pool[1], state, "state in the pool");
    EXPECT_TRUE((pool[0] == 7).all().item<bool>());
    EXPECT_TRUE((pool[2] == 7).all().item<bool>());
  };
  Tensor pool = pool_of(steps.linear["state"]);
  expect_same(steps.step_linear(pool[1]),
              plain.step_linear(plain.linear["state"]), "output");
  expect_only_the_view_changed(pool, plain.linear["state"]);

  pool = pool_of(steps.universal["state"]);
  expect_same(steps.step_universal(pool[1]),
              plain.step_universal(plain.universal["state"]), "output");
  expect_only_the_view_changed(pool, plain.universal["state"]);

  Tensor keys = pool_of(steps.nested["key_state"]);
  Tensor values = pool_of(steps.nested["value_state"]);
  Tensor counts = pool_of(steps.nested["count"]);
  expect_same(
      steps.step_nested(keys[1], values[1], counts[1]),
      plain.step_nested(plain.nested["key_state"], plain.nested["value_state"],
                        plain.nested["count"]),
      "output");
  expect_only_the_view_changed(keys, plain.nested["key_state"]);
  expect_only_the_view_changed(values, plain.nested["value_state"]);
  expect_only_the_view_changed(counts, plain.nested["count"]);
}

TEST(StepBehaviour, WeightOfZeroLeavesTheState) {
  Steps steps;
  const Tensor none = at::zeros({2}, at::kBool);
  const Tensor zero = at::zeros({2, 2}, at::kFloat);
  Tensor state = steps.linear["state"];
  const Tensor before = state.clone();
  steps.step_linear(state, none);
  expect_same(state, before, "state");
  steps.step_linear(state, zero);
  expect_same(state, before, "state");
  // Nothing seen at all: exactly 0.
  state = at::zeros_like(before);
  EXPECT_EQ(steps.step_linear(state, none).abs().max().item<double>(), 0.0);
  state = at::zeros_like(steps.universal["state"]);
  EXPECT_EQ(steps.step_universal(state, none).abs().max().item<double>(), 0.0);
}

TEST(StepBehaviour, EmptyBatch) {
  Steps steps;
  for (auto& [name, tensor] : steps.linear) {
    if (tensor.dim() == 4) tensor = tensor.narrow(0, 0, 0);
  }
  const Tensor output = steps.step_linear(steps.linear["state"]);
  EXPECT_EQ(output.sizes(), (std::vector<int64_t>{0, 2, 3}));
}

}  // namespace
}  // namespace luna::testing
