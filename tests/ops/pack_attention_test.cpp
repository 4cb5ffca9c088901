#include <luna/ops/pack_attention.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>

#include "support/dropout.h"
#include "support/properties.h"

namespace luna::testing {
namespace {

using at::Tensor;

const PackedArguments kPacked{
    {}, {"key", "value", "key_weight"}, {"query"}, {0}};

Problem problem_of(const PackSpec& spec) {
  Random random(51);
  return pack_problem(spec, random);
}

void for_each_kind(const std::function<void(const PackSpec&)>& check) {
  for (bool shared_query : {false, true}) {
    for (std::optional<double> scale : {std::optional<double>{}, {0.7}}) {
      for (Weight weight : {Weight::kNone, Weight::kBool, Weight::kFloat,
                            Weight::kBoolPerHead, Weight::kFloatPerHead}) {
        const PackSpec spec{
            .weight = weight, .shared_query = shared_query, .scale = scale};
        SCOPED_TRACE(describe(spec));
        check(spec);
      }
    }
  }
}

class PackAttention : public OpTest {};
LUNA_ALL_CASES(PackAttention);

TEST_P(PackAttention, MatchesReference) {
  for_each_kind([](const PackSpec& spec) {
    expect_outputs_match(GetParam(), problem_of(spec));
  });
}

TEST_P(PackAttention, GradientsMatchReference) {
  for_each_kind([](const PackSpec& spec) {
    expect_matches(GetParam(), problem_of(spec));
  });
}

TEST_P(PackAttention, EachGradientAlone) {
  expect_each_gradient_alone(
      GetParam(), problem_of({.weight = Weight::kFloat, .shared_query = true}));
}

TEST_P(PackAttention, StridedInputsAgree) {
  for (Layout layout : {Layout::kHeadsInside, Layout::kSliced}) {
    for (Weight weight : {Weight::kBool, Weight::kFloatPerHead}) {
      for (bool shared_query : {false, true}) {
        const PackSpec spec{
            .weight = weight, .shared_query = shared_query, .layout = layout};
        SCOPED_TRACE(describe(spec));
        expect_matches(GetParam(), problem_of(spec));
      }
    }
  }
}

TEST_P(PackAttention, ExpandedBatchAgrees) {
  expect_expanded_batch_matches(
      GetParam(), problem_of({.batch = 1, .weight = Weight::kFloat}));
}

TEST_P(PackAttention, StrideZeroGradients) {
  expect_stride_zero_gradients(GetParam(),
                               problem_of({.weight = Weight::kFloat}));
}

TEST_P(PackAttention, CallsCanBeRepeated) {
  expect_calls_can_be_repeated(
      GetParam(), problem_of({.weight = Weight::kFloat, .dropout_p = 0.2}));
}

TEST_P(PackAttention, SameBitsTwice) {
  expect_same_bits_twice(GetParam(), problem_of({.batch = 1,
                                                 .heads = 1,
                                                 .m = 3000,
                                                 .weight = Weight::kFloat,
                                                 .dropout_p = 0.3}));
}

TEST_P(PackAttention, PackedEqualsSeparate) {
  for (bool shared_query : {false, true}) {
    for (Weight weight : {Weight::kNone, Weight::kFloatPerHead}) {
      const PackSpec spec{.weight = weight,
                          .lengths_k = {4, 0, 70, 1},
                          .shared_query = shared_query};
      SCOPED_TRACE(describe(spec));
      expect_packed_equals_separate(GetParam(), problem_of(spec), kPacked);
      expect_matches(GetParam(), problem_of(spec));
    }
  }
}

TEST_P(PackAttention, MaskedPartEqualsRemoved) {
  expect_masked_part_equals_removed(GetParam(), problem_of({.m = 20}));
}

TEST_P(PackAttention, PaddingChangesNothing) {
  expect_padding_changes_nothing(GetParam(), problem_of({.m = 20}));
  expect_padding_changes_nothing(
      GetParam(), problem_of({.m = 20, .weight = Weight::kBoolPerHead}));
}

TEST_P(PackAttention, WeightGradientSumsOverHeads) {
  expect_weight_gradient_sums_over_heads(
      GetParam(), problem_of({.heads = 3, .weight = Weight::kFloat}));
}

TEST_P(PackAttention, WidthsThatAreNoMultipleOfVectors) {
  for (int64_t width : {1, 5, 33}) {
    for (int64_t value_width : {1, 3, 31}) {
      for (int64_t l : {1, 7, 17}) {
        const PackSpec spec{.batch = 1,
                            .l = l,
                            .m = 13,
                            .width = width,
                            .value_width = value_width};
        SCOPED_TRACE(describe(spec));
        expect_matches(GetParam(), problem_of(spec));
      }
    }
  }
}

TEST_P(PackAttention, LongSequence) {
  for (int64_t m : {63, 64, 65, 1023, 1025, 5000}) {
    const PackSpec spec{
        .batch = 1, .heads = 1, .m = m, .weight = Weight::kFloat};
    SCOPED_TRACE(describe(spec));
    expect_matches(GetParam(), problem_of(spec));
  }
}

TEST_P(PackAttention, OneToken) {
  const Problem problem = problem_of({.m = 1});
  const Arguments arguments = stored(problem.arguments, GetParam());
  const Tensor value = arguments.at("value");
  const Tensor output = problem.op(arguments)[0];
  expect_same(output, value.expand_as(output), "the only key's value");
  expect_matches(GetParam(), problem);
}

TEST_P(PackAttention, EmptySequences) {
  for (const PackSpec& spec :
       {PackSpec{.m = 0}, PackSpec{.l = 0}, PackSpec{.batch = 0},
        PackSpec{.m = 0, .shared_query = true}}) {
    SCOPED_TRACE(describe(spec));
    expect_matches(GetParam(), problem_of(spec));
  }
  const Problem nothing = problem_of({.m = 0});
  const Tensor output = nothing.op(stored(nothing.arguments, GetParam()))[0];
  EXPECT_EQ(output.abs().max().item<double>(), 0.0);
}

TEST_P(PackAttention, AllKeysMaskedGivesZero) {
  for (Weight weight : {Weight::kBool, Weight::kFloat}) {
    const Problem problem = problem_of({.weight = weight});
    Arguments arguments = stored(problem.arguments, GetParam());
    Tensor mask = at::ones_like(arguments["key_weight"]);
    mask[1].zero_();
    arguments["key_weight"] = mask;
    const Results results = evaluate(problem.op, arguments);
    EXPECT_EQ(results.outputs[0][1].abs().max().item<double>(), 0.0);
    EXPECT_GT(results.outputs[0][0].abs().max().item<double>(), 0.0);
    for (const auto& [name, gradient] : results.gradients) {
      expect_finite(gradient, name);
      EXPECT_EQ(gradient[1].abs().max().item<double>(), 0.0) << name;
    }
  }
}

TEST_P(PackAttention, DropoutIsAPureFunctionOfTheSeed) {
  expect_pure_function_of_the_seed(
      GetParam(), problem_of({.l = 8, .m = 40, .dropout_p = 0.4}));
}

PackSpec square_spec(double dropout_p) {
  return {.l = 8, .m = 16, .value_width = 16, .dropout_p = dropout_p};
}

TEST(PackAttentionValues, DropoutKeepsTheMean) {
  for (double p : {0.1, 0.5}) {
    Problem dropped = problem_of(square_spec(p));
    Problem exact = problem_of(square_spec(0));
    make_values_one_hot(dropped);
    make_values_one_hot(exact);
    expect_dropout_drops_or_scales(dropped, exact, p);
  }
}

TEST(PackAttentionValues, DropoutGradientsMatchFiniteDifferences) {
  for (PackSpec spec :
       {PackSpec{.weight = Weight::kFloat}, PackSpec{.lengths_k = {3, 0, 2}},
        PackSpec{.shared_query = true}}) {
    spec.dropout_p = 0.4;
    SCOPED_TRACE(describe(spec));
    Problem problem = problem_of(spec);
    if (spec.weight != Weight::kNone) problem.arguments["key_weight"] += 0.1;
    expect_finite_differences(problem.op, problem.arguments);
  }
  // Many keys, so that the mask is found again across tiles and splits.
  const Problem problem =
      problem_of({.batch = 1, .heads = 1, .l = 2, .m = 1500, .dropout_p = 0.4});
  const Function of_query = [&](const Arguments& a) {
    Arguments all = problem.arguments;
    all["query"] = a.at("query");
    return problem.op(all);
  };
  expect_finite_differences(of_query,
                            {{"query", problem.arguments.at("query")}});
}

TEST(PackAttentionValues, GradientsMatchFiniteDifferences) {
  for_each_kind([](const PackSpec& spec) {
    Problem problem = problem_of(spec);
    auto weight = problem.arguments.find("key_weight");
    if (weight != problem.arguments.end()) {
      if (weight->second.is_floating_point()) weight->second += 0.1;
    }
    expect_finite_differences(problem.op, problem.arguments);
  });
}

TEST(PackAttentionValues, ZeroWeightGradientIsFinite) {
  for (Weight weight : {Weight::kFloat, Weight::kFloatPerHead}) {
    expect_zero_weight_gradient(problem_of({.weight = weight}));
  }
}

TEST(PackAttentionValues, WeightsOfOneChangeNothing) {
  Problem plain = problem_of({});
  Arguments weighted = plain.arguments;
  weighted["key_weight"] = at::ones({2, 6}, at::kDouble);
  expect_close(plain.op(weighted)[0], plain.op(plain.arguments)[0], 1e-14,
               "output");
}

TEST(PackAttentionValues, ChangedInputsAreNoticed) {
  expect_changed_inputs_noticed(problem_of({}), {"query", "key", "value"});
}

TEST(PackAttentionValues, ManySequences) {
  std::vector<int64_t> lengths(60, 0);
  for (size_t i = 0; i < lengths.size(); ++i) lengths[i] = (i * 7) % 5;
  for (const auto& packing :
       {lengths, std::vector<int64_t>{0}, {0, 0, 0}, {0, 700, 0}, {700, 1}}) {
    expect_matches({at::kCPU, at::kDouble, 1e-12, 1e-11},
                   problem_of({.lengths_k = packing}));
  }
}

TEST(PackAttentionValues, WeightsScaleOut) {
  // Only ratios of weights count, also far from 1.
  const Problem problem = problem_of({.m = 50, .weight = Weight::kFloat});
  const Case c{at::kCPU, at::kFloat, 1e-5, 1e-4};
  const Arguments arguments = stored(problem.arguments, c);
  const Results want = evaluate(problem.op, arguments);
  for (double scale : {1e-20, 1e20}) {
    Arguments scaled = arguments;
    scaled["key_weight"] = arguments.at("key_weight") * scale;
    const Results got = evaluate(problem.op, scaled);
    expect_close(got.outputs[0], want.outputs[0], c.forward, "output");
    for (const char* name : {"query", "key", "value"}) {
      expect_close(got.gradients.at(name), want.gradients.at(name), c.gradient,
                   name);
    }
    expect_close(got.gradients.at("key_weight") * scale,
                 want.gradients.at("key_weight"), c.gradient, "key_weight");
  }
}

TEST(PackAttentionValues, DoubleBackwardIsRefused) {
  expect_double_backward_refused(problem_of({.weight = Weight::kFloat}));
}

TEST(PackAttentionValues, SavesNothingOfSizeML) {
  const int64_t m = 4096, l = 64, width = 8;
  const Problem problem = problem_of({.batch = 1,
                                      .heads = 1,
                                      .l = l,
                                      .m = m,
                                      .width = width,
                                      .value_width = width});
  EXPECT_LE(bytes_saved_for_backward(problem, at::kFloat), 65536);
}

}  // namespace
}  // namespace luna::testing
