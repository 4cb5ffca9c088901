#include <luna/ops/unpack_attention.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>

#include "support/dropout.h"
#include "support/properties.h"

namespace luna::testing {
namespace {

using at::Tensor;

const PackedArguments kPacked{
    {"query"}, {}, {"key", "value", "key_weight"}, {2}};

Problem problem_of(const UnpackSpec& spec) {
  Random random(61);
  return unpack_problem(spec, random);
}

void for_each_kind(const std::function<void(const UnpackSpec&)>& check) {
  for (std::optional<double> scale : {std::optional<double>{}, {0.7}}) {
    for (Weight weight : {Weight::kNone, Weight::kBool, Weight::kFloat,
                          Weight::kBoolPerHead, Weight::kFloatPerHead}) {
      const UnpackSpec spec{.weight = weight, .scale = scale};
      SCOPED_TRACE(describe(spec));
      check(spec);
    }
  }
}

class UnpackAttention : public OpTest {};
LUNA_ALL_CASES(UnpackAttention);

TEST_P(UnpackAttention, MatchesReference) {
  for_each_kind([](const UnpackSpec& spec) {
    expect_outputs_match(GetParam(), problem_of(spec));
  });
}

TEST_P(UnpackAttention, GradientsMatchReference) {
  for_each_kind([](const UnpackSpec& spec) {
    expect_matches(GetParam(), problem_of(spec));
  });
}

TEST_P(UnpackAttention, EachGradientAlone) {
  expect_each_gradient_alone(GetParam(),
                             problem_of({.weight = Weight::kFloat}));
}

TEST_P(UnpackAttention, StridedInputsAgree) {
  for (Layout layout : {Layout::kHeadsInside, Layout::kSliced}) {
    for (Weight weight : {Weight::kBool, Weight::kFloatPerHead}) {
      const UnpackSpec spec{.weight = weight, .layout = layout};
      SCOPED_TRACE(describe(spec));
      expect_matches(GetParam(), problem_of(spec));
    }
  }
}

TEST_P(UnpackAttention, ExpandedBatchAgrees) {
  expect_expanded_batch_matches(
      GetParam(), problem_of({.batch = 1, .weight = Weight::kFloat}));
}

TEST_P(UnpackAttention, StrideZeroGradients) {
  expect_stride_zero_gradients(GetParam(),
                               problem_of({.weight = Weight::kFloat}));
}

TEST_P(UnpackAttention, CallsCanBeRepeated) {
  expect_calls_can_be_repeated(
      GetParam(), problem_of({.weight = Weight::kFloat, .dropout_p = 0.2}));
}

TEST_P(UnpackAttention, SameBitsTwice) {
  expect_same_bits_twice(GetParam(), problem_of({.batch = 1,
                                                 .heads = 1,
                                                 .n = 3000,
                                                 .weight = Weight::kFloat,
                                                 .dropout_p = 0.3}));
}

TEST_P(UnpackAttention, PackedEqualsSeparate) {
  for (Weight weight : {Weight::kNone, Weight::kBool, Weight::kFloatPerHead}) {
    const UnpackSpec spec{.weight = weight, .lengths_q = {4, 0, 70, 1}};
    SCOPED_TRACE(describe(spec));
    expect_packed_equals_separate(GetParam(), problem_of(spec), kPacked);
    expect_matches(GetParam(), problem_of(spec));
  }
}

TEST_P(UnpackAttention, MaskedPartEqualsRemoved) {
  expect_masked_part_equals_removed(GetParam(), problem_of({.l = 20}));
}

TEST_P(UnpackAttention, PaddingChangesNothing) {
  expect_padding_changes_nothing(GetParam(), problem_of({.l = 20}));
}

TEST_P(UnpackAttention, WeightGradientSumsOverHeads) {
  expect_weight_gradient_sums_over_heads(
      GetParam(), problem_of({.heads = 3, .weight = Weight::kFloat}));
}

TEST_P(UnpackAttention, WidthsThatAreNoMultipleOfVectors) {
  for (int64_t width : {1, 5, 33}) {
    for (int64_t value_width : {1, 3, 31}) {
      for (int64_t l : {1, 7, 17}) {
        const UnpackSpec spec{.batch = 1,
                              .n = 13,
                              .l = l,
                              .width = width,
                              .value_width = value_width};
        SCOPED_TRACE(describe(spec));
        expect_matches(GetParam(), problem_of(spec));
      }
    }
  }
}

TEST_P(UnpackAttention, LongSequence) {
  for (int64_t n : {63, 64, 65, 1023, 1025, 5000}) {
    const UnpackSpec spec{
        .batch = 1, .heads = 1, .n = n, .weight = Weight::kFloat};
    SCOPED_TRACE(describe(spec));
    expect_matches(GetParam(), problem_of(spec));
  }
  // A memory longer than any tile of it.
  expect_matches(GetParam(),
                 problem_of({.batch = 1, .heads = 1, .n = 300, .l = 300}));
}

TEST_P(UnpackAttention, OneToken) {
  for (const UnpackSpec& spec : {UnpackSpec{.n = 1}, UnpackSpec{.l = 1}}) {
    expect_matches(GetParam(), problem_of(spec));
  }
  // As decoders have it, without gradients: fewer and more slots and columns
  // than a block has threads.
  for (auto [l, width, value_width] : {std::tuple{16, 64, 64},
                                       {32, 64, 64},
                                       {1, 12, 40},
                                       {512, 64, 24},
                                       {33, 130, 300}}) {
    for (Weight weight :
         {Weight::kNone, Weight::kBool, Weight::kFloatPerHead}) {
      const UnpackSpec spec{.n = 1,
                            .l = l,
                            .width = width,
                            .value_width = value_width,
                            .weight = weight,
                            .layout = Layout::kHeadsInside};
      SCOPED_TRACE(describe(spec));
      expect_outputs_match(GetParam(), problem_of(spec));
    }
  }
  // More slots than a block keeps scores of; none; no sequence.
  for (const UnpackSpec& spec :
       {UnpackSpec{.n = 1, .l = 5000}, UnpackSpec{.n = 1, .l = 0},
        UnpackSpec{.batch = 0, .n = 1}}) {
    SCOPED_TRACE(describe(spec));
    expect_outputs_match(GetParam(), problem_of(spec));
  }
  Arguments masked = stored(
      problem_of({.n = 1, .weight = Weight::kBool}).arguments, GetParam());
  masked["key_weight"].zero_();
  EXPECT_EQ(
      ops::unpack_attention(masked["query"], masked["key"], masked["value"],
                            {.key_weight = masked["key_weight"]})
          .abs()
          .max()
          .item<double>(),
      0.0);
}

TEST_P(UnpackAttention, EmptySequences) {
  for (const UnpackSpec& spec :
       {UnpackSpec{.n = 0}, UnpackSpec{.l = 0}, UnpackSpec{.batch = 0}}) {
    SCOPED_TRACE(describe(spec));
    expect_matches(GetParam(), problem_of(spec));
  }
}

TEST_P(UnpackAttention, AllKeysMaskedGivesZero) {
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

TEST_P(UnpackAttention, DropoutIsAPureFunctionOfTheSeed) {
  expect_pure_function_of_the_seed(
      GetParam(), problem_of({.n = 40, .l = 8, .dropout_p = 0.4}));
}

UnpackSpec square_spec(double dropout_p) {
  return {.n = 8, .l = 16, .value_width = 16, .dropout_p = dropout_p};
}

TEST(UnpackAttentionValues, DropoutKeepsTheMean) {
  for (double p : {0.1, 0.5}) {
    Problem dropped = problem_of(square_spec(p));
    Problem exact = problem_of(square_spec(0));
    make_values_one_hot(dropped);
    make_values_one_hot(exact);
    expect_dropout_drops_or_scales(dropped, exact, p);
  }
}

TEST(UnpackAttentionValues, DropoutGradientsMatchFiniteDifferences) {
  for (UnpackSpec spec : {UnpackSpec{.weight = Weight::kFloat},
                          UnpackSpec{.lengths_q = {3, 0, 2}}}) {
    spec.dropout_p = 0.4;
    SCOPED_TRACE(describe(spec));
    Problem problem = problem_of(spec);
    if (spec.weight != Weight::kNone) problem.arguments["key_weight"] += 0.1;
    expect_finite_differences(problem.op, problem.arguments);
  }
  // Many queries, so that the mask is found again across tiles and splits.
  const Problem problem =
      problem_of({.batch = 1, .heads = 1, .n = 1500, .l = 2, .dropout_p = 0.4});
  const Function of_key = [&](const Arguments& a) {
    Arguments all = problem.arguments;
    all["key"] = a.at("key");
    return problem.op(all);
  };
  expect_finite_differences(of_key, {{"key", problem.arguments.at("key")}});
}

TEST(UnpackAttentionValues, GradientsMatchFiniteDifferences) {
  for_each_kind([](const UnpackSpec& spec) {
    Problem problem = problem_of(spec);
    auto weight = problem.arguments.find("key_weight");
    if (weight != problem.arguments.end()) {
      if (weight->second.is_floating_point()) weight->second += 0.1;
    }
    expect_finite_differences(problem.op, problem.arguments);
  });
}

TEST(UnpackAttentionValues, ZeroWeightGradientIsFinite) {
  for (Weight weight : {Weight::kFloat, Weight::kFloatPerHead}) {
    expect_zero_weight_gradient(problem_of({.weight = weight}));
  }
}

TEST(UnpackAttentionValues, ChangedInputsAreNoticed) {
  expect_changed_inputs_noticed(problem_of({}), {"query", "key", "value"});
}

TEST(UnpackAttentionValues, ManySequences) {
  std::vector<int64_t> lengths(60, 0);
  for (size_t i = 0; i < lengths.size(); ++i) lengths[i] = (i * 7) % 5;
  for (const auto& packing :
       {lengths, std::vector<int64_t>{0}, {0, 0, 0}, {0, 700, 0}, {700, 1}}) {
    expect_matches({at::kCPU, at::kDouble, 1e-12, 1e-11},
                   problem_of({.lengths_q = packing}));
  }
}

TEST(UnpackAttentionValues, DoubleBackwardIsRefused) {
  expect_double_backward_refused(problem_of({.weight = Weight::kFloat}));
}

TEST(UnpackAttentionValues, SavesNothingOfSizeNL) {
  const int64_t n = 4096, l = 64, width = 8;
  const Problem problem = problem_of({.batch = 1,
                                      .heads = 1,
                                      .n = n,
                                      .l = l,
                                      .width = width,
                                      .value_width = width});
  EXPECT_LE(bytes_saved_for_backward(problem, at::kFloat), 2 * n * 4 + 65536);
}

}  // namespace
}  // namespace luna::testing
