#include <luna/ops/linear_attention.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>

#include "support/properties.h"

namespace luna::testing {
namespace {

using at::Tensor;

const PackedArguments kPacked{
    {"query"}, {"key", "value", "key_weight"}, {"state"}, {2, 0}};

Problem problem_of(const LinearSpec& spec) {
  Random random(11);
  return linear_problem(spec, random);
}

/// Every combination of what changes the formula.
void for_each_kind(const std::function<void(const LinearSpec&)>& check) {
  for (bool causal : {false, true}) {
    for (bool normalize : {false, true}) {
      for (bool state : {false, true}) {
        for (Weight weight : {Weight::kNone, Weight::kBool, Weight::kFloat,
                              Weight::kBoolPerHead, Weight::kFloatPerHead}) {
          LinearSpec spec{.m = causal ? 6 : 9, .weight = weight};
          spec.causal = causal;
          spec.normalize = normalize;
          spec.state = state;
          SCOPED_TRACE(describe(spec));
          check(spec);
        }
      }
    }
  }
}

class LinearAttention : public OpTest {
 protected:
  static Problem problem(LinearSpec spec) {
    spec.eps = eps_for(GetParam().dtype);
    return problem_of(spec);
  }
};
LUNA_ALL_CASES(LinearAttention);

TEST_P(LinearAttention, MatchesReference) {
  for_each_kind([](const LinearSpec& spec) {
    expect_outputs_match(GetParam(), problem(spec));
  });
}

TEST_P(LinearAttention, GradientsMatchReference) {
  for_each_kind([](const LinearSpec& spec) {
    expect_matches(GetParam(), problem(spec));
  });
}

TEST_P(LinearAttention, StateGradients) {
  for (bool causal : {false, true}) {
    const LinearSpec spec{
        .weight = Weight::kFloat, .causal = causal, .state = true};
    SCOPED_TRACE(describe(spec));
    expect_each_output_alone(GetParam(), problem(spec));
  }
}

TEST_P(LinearAttention, EachGradientAlone) {
  for (bool causal : {false, true}) {
    expect_each_gradient_alone(
        GetParam(),
        problem({.weight = Weight::kFloat, .causal = causal, .state = true}));
  }
}

TEST_P(LinearAttention, StridedInputsAgree) {
  for (Layout layout : {Layout::kHeadsInside, Layout::kSliced}) {
    for (bool causal : {false, true}) {
      for (Weight weight : {Weight::kBool, Weight::kFloatPerHead}) {
        const LinearSpec spec{.weight = weight,
                              .causal = causal,
                              .state = true,
                              .layout = layout};
        SCOPED_TRACE(describe(spec));
        expect_matches(GetParam(), problem(spec));
      }
    }
  }
}

TEST_P(LinearAttention, KeepsTheMemoryOrder) {
  for (bool causal : {false, true}) {
    expect_memory_order_kept(GetParam(), problem({.causal = causal}));
  }
}

TEST_P(LinearAttention, ExpandedBatchAgrees) {
  for (bool causal : {false, true}) {
    expect_expanded_batch_matches(GetParam(), problem({.batch = 1,
                                                       .weight = Weight::kFloat,
                                                       .causal = causal,
                                                       .state = true}));
  }
}

TEST_P(LinearAttention, StrideZeroGradients) {
  for (bool causal : {false, true}) {
    expect_stride_zero_gradients(
        GetParam(), problem({.weight = Weight::kFloat, .causal = causal}));
  }
}

TEST_P(LinearAttention, CallsCanBeRepeated) {
  for (bool causal : {false, true}) {
    expect_calls_can_be_repeated(
        GetParam(),
        problem({.n = 100, .m = 100, .causal = causal, .state = true}));
  }
}

TEST_P(LinearAttention, SameBitsTwice) {
  for (bool causal : {false, true}) {
    expect_same_bits_twice(GetParam(), problem({.batch = 1,
                                                .heads = 1,
                                                .n = 700,
                                                .m = 700,
                                                .weight = Weight::kFloat,
                                                .causal = causal}));
  }
}

TEST_P(LinearAttention, DoesNotSeeTheFuture) {
  // 150 positions: several chunks, and a part of one.
  expect_future_unseen(
      GetParam(),
      problem({.n = 150, .m = 150, .weight = Weight::kFloat, .causal = true}),
      {"query", "key", "value", "key_weight"});
}

TEST_P(LinearAttention, PackedEqualsSeparate) {
  for (bool causal : {false, true}) {
    for (bool state : {false, true}) {
      LinearSpec spec{.weight = Weight::kFloat,
                      .lengths_q = {3, 0, 70, 1},
                      .lengths_k = {3, 0, 70, 1}};
      if (!causal) spec.lengths_k = {0, 4, 9, 66};
      spec.causal = causal;
      spec.state = state;
      SCOPED_TRACE(describe(spec));
      expect_packed_equals_separate(GetParam(), problem(spec), kPacked);
      expect_matches(GetParam(), problem(spec));
    }
  }
}

TEST_P(LinearAttention, MaskedPartEqualsRemoved) {
  expect_masked_part_equals_removed(GetParam(), problem({.m = 20}));
}

TEST_P(LinearAttention, PaddingChangesNothing) {
  expect_padding_changes_nothing(GetParam(), problem({.m = 20}));
  expect_padding_changes_nothing(
      GetParam(), problem({.m = 20, .weight = Weight::kFloatPerHead}));
}

TEST_P(LinearAttention, WeightGradientSumsOverHeads) {
  expect_weight_gradient_sums_over_heads(
      GetParam(), problem({.heads = 3, .weight = Weight::kFloat}));
}

TEST_P(LinearAttention, WidthsThatAreNoMultipleOfVectors) {
  for (int64_t width : {1, 5, 17, 33}) {
    for (int64_t value_width : {1, 3, 16, 31}) {
      for (bool causal : {false, true}) {
        const LinearSpec spec{.batch = 1,
                              .n = 13,
                              .m = 13,
                              .width = width,
                              .value_width = value_width,
                              .causal = causal};
        SCOPED_TRACE(describe(spec));
        expect_matches(GetParam(), problem(spec));
      }
    }
  }
}

TEST_P(LinearAttention, LongSequence) {
  for (int64_t n : {63, 64, 65, 1023, 1025, 5000}) {
    for (bool causal : {false, true}) {
      const LinearSpec spec{.batch = 1,
                            .heads = 1,
                            .n = n,
                            .m = n,
                            .weight = Weight::kFloat,
                            .causal = causal};
      SCOPED_TRACE(describe(spec));
      expect_matches(GetParam(), problem(spec));
    }
  }
}

TEST_P(LinearAttention, OneToken) {
  for (bool causal : {false, true}) {
    const Problem p = problem({.n = 1, .m = 1, .causal = causal});
    expect_matches(GetParam(), p);
    const Arguments arguments = stored(p.arguments, GetParam());
    expect_close(p.op(arguments)[0], arguments.at("value"),
                 GetParam().agreement(), "a single key's value");
  }
}

TEST_P(LinearAttention, EmptySequences) {
  for (bool state : {false, true}) {
    for (LinearSpec spec :
         {LinearSpec{.n = 0}, LinearSpec{.m = 0}, LinearSpec{.n = 0, .m = 0},
          LinearSpec{.batch = 0}, LinearSpec{.n = 0, .m = 0, .causal = true},
          LinearSpec{.batch = 0, .causal = true}}) {
      spec.state = state;
      SCOPED_TRACE(describe(spec));
      expect_matches(GetParam(), problem(spec));
    }
  }
  const Problem nothing = problem({.m = 0});
  const Tensor output = nothing.op(stored(nothing.arguments, GetParam()))[0];
  EXPECT_EQ(output.abs().max().item<double>(), 0.0);
}

TEST_P(LinearAttention, AllKeysMaskedGivesZero) {
  for (bool causal : {false, true}) {
    for (Weight weight : {Weight::kBool, Weight::kFloat}) {
      Problem p = problem({.weight = weight, .causal = causal});
      Arguments arguments = stored(p.arguments, GetParam());
      Tensor mask = at::ones_like(arguments["key_weight"]);
      mask[1].zero_();
      arguments["key_weight"] = mask;
      const Function output = [&](const Arguments& a) -> Tensors {
        return {p.op(a)[0]};
      };
      const Results results = evaluate(output, arguments);
      EXPECT_EQ(results.outputs[0][1].abs().max().item<double>(), 0.0);
      EXPECT_GT(results.outputs[0][0].abs().min().item<double>(), 0.0);
      for (const auto& [name, gradient] : results.gradients) {
        expect_finite(gradient, name);
        EXPECT_EQ(gradient[1].abs().max().item<double>(), 0.0) << name;
      }
    }
  }
}

TEST_P(LinearAttention, StreamInPiecesEqualsOneCall) {
  const LinearSpec spec{.n = 100,
                        .m = 100,
                        .weight = Weight::kFloat,
                        .causal = true,
                        .state = true};
  const Problem p = problem(spec);
  const Function pieces = [&](const Arguments& a) -> Tensors {
    Tensors outputs;
    Arguments piece = a;
    int64_t start = 0;
    for (int64_t length : {1, 40, 0, 59}) {
      for (const char* name : {"query", "key", "value"}) {
        piece[name] = a.at(name).narrow(2, start, length);
      }
      piece["key_weight"] = a.at("key_weight").narrow(1, start, length);
      const Tensors results = p.op(piece);
      outputs.push_back(results[0]);
      piece["state"] = results[1];
      start += length;
    }
    return {at::cat(outputs, 2), piece["state"]};
  };
  expect_matches(GetParam(), {p.arguments, pieces, p.reference});
}

TEST_P(LinearAttention, QueryAgainstFinishedState) {
  const Problem p = problem({.n = 5, .m = 40, .weight = Weight::kFloat});
  const Function in_two_calls = [&](const Arguments& a) -> Tensors {
    Arguments keys_only = a, queries_only = a;
    keys_only["query"] = a.at("query").narrow(2, 0, 0);
    queries_only["state"] = p.op(keys_only)[1];
    for (const char* name : {"key", "value"}) {
      queries_only[name] = a.at(name).narrow(2, 0, 0);
    }
    queries_only["key_weight"] = a.at("key_weight").narrow(1, 0, 0);
    return p.op(queries_only);
  };
  expect_matches(GetParam(), {p.arguments, in_two_calls, p.reference});
}

TEST_P(LinearAttention, GivenStateStaysAndReturnedOneIsFresh) {
  for (int64_t m : {0, 4}) {
    const Problem p = problem({.m = m, .state = true});
    const Arguments arguments = stored(p.arguments, GetParam());
    const Tensor given = arguments.at("state"), before = given.clone();
    Tensor returned = p.op(arguments)[1];
    EXPECT_FALSE(returned.is_alias_of(given));
    returned.fill_(7);
    expect_same(given, before, "given state");
  }
}

TEST(LinearAttentionValues, GradientsMatchFiniteDifferences) {
  for_each_kind([](const LinearSpec& spec) {
    LinearSpec small = spec;
    small.batch = 1;
    small.n = 3;
    small.m = spec.causal ? 3 : 4;
    Problem problem = problem_of(small);
    // Differences go both ways, and weights may not be negative.
    auto weight = problem.arguments.find("key_weight");
    if (weight != problem.arguments.end()) {
      if (weight->second.is_floating_point()) weight->second += 0.1;
    }
    expect_finite_differences(problem.op, problem.arguments);
  });
}

TEST(LinearAttentionValues, ZeroWeightGradientIsFinite) {
  for (bool causal : {false, true}) {
    for (Weight weight : {Weight::kFloat, Weight::kFloatPerHead}) {
      expect_zero_weight_gradient(
          problem_of({.weight = weight, .causal = causal}));
    }
  }
}

TEST(LinearAttentionValues, ChangedInputsAreNoticed) {
  for (bool causal : {false, true}) {
    expect_changed_inputs_noticed(problem_of({.causal = causal}),
                                  {"query", "key", "value"});
  }
}

TEST(LinearAttentionValues, ManySequences) {
  // More sequences than threads, many of them empty, and nothing at all.
  std::vector<int64_t> lengths(60, 0);
  for (size_t i = 0; i < lengths.size(); ++i) lengths[i] = (i * 7) % 5;
  for (const auto& packing :
       {lengths, std::vector<int64_t>{0}, {0, 0, 0}, {0, 700, 0}, {700, 1}}) {
    for (bool causal : {false, true}) {
      const LinearSpec spec{.lengths_q = packing,
                            .lengths_k = packing,
                            .causal = causal,
                            .state = true};
      SCOPED_TRACE(describe(spec));
      expect_matches({at::kCPU, at::kDouble, 1e-12, 1e-11}, problem_of(spec));
    }
  }
}

TEST(LinearAttentionValues, DoubleBackwardIsRefused) {
  for (bool causal : {false, true}) {
    expect_double_backward_refused(problem_of(
        {.weight = Weight::kFloat, .causal = causal, .state = true}));
  }
}

Tensor sequence(std::vector<double> values) {
  return at::tensor(values, at::kDouble).view({1, 1, -1, 1}).clone();
}

TEST(LinearAttentionValues, DenominatorIsGuarded) {
  // By hand: den = 1 - 1 = 0 counts as +eps; den = -.1 counts as -eps, and as
  // a constant: d out/dq = k v / -eps = 1, d out/dk = q v / -eps = -10.
  const ops::LinearAttentionOptions options{.eps = 0.5};
  auto [output, state] = ops::linear_attention(sequence({1}), sequence({1, -1}),
                                               sequence({5, 2}), options);
  EXPECT_DOUBLE_EQ(output.item<double>(), 6.0);
  const Tensor q = sequence({1}).requires_grad_();
  const Tensor k = sequence({-0.1}).requires_grad_();
  for (bool causal : {false, true}) {
    const ops::LinearAttentionOptions guarded{.causal = causal, .eps = 0.5};
    std::tie(output, state) =
        ops::linear_attention(q, k, sequence({5}), guarded);
    EXPECT_DOUBLE_EQ(output.item<double>(), 1.0);
    const auto gradients = torch::autograd::grad({output}, {q, k});
    EXPECT_DOUBLE_EQ(gradients[0].item<double>(), 1.0);
    EXPECT_DOUBLE_EQ(gradients[1].item<double>(), -10.0);
  }
}

TEST(LinearAttentionValues, SignedDenominators) {
  // Features of both signs, with denominators on both sides of 0.
  for (bool causal : {false, true}) {
    Problem problem = problem_of({.n = 40, .m = 40, .causal = causal});
    Random random(3);
    problem.arguments["query"] =
        random.normal(problem.arguments["query"].sizes());
    problem.arguments["key"] += 0.5;
    expect_matches({at::kCPU, at::kDouble, 1e-11, 1e-10}, problem);
  }
}

TEST(LinearAttentionValues, SavesNoMoreThanTheQuery) {
  for (bool causal : {false, true}) {
    const int64_t n = 4096, width = 32;
    const LinearSpec spec{.batch = 1,
                          .heads = 1,
                          .n = n,
                          .m = n,
                          .width = width,
                          .value_width = 32,
                          .causal = causal};
    const int64_t query = n * width * 4, rows = 2 * n * 4;
    EXPECT_LE(bytes_saved_for_backward(problem_of(spec), at::kFloat),
              query + rows + 65536)
        << describe(spec);
  }
}

}  // namespace
}  // namespace luna::testing
