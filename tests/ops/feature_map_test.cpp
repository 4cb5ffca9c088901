#include <luna/ops/feature_map.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "support/properties.h"

namespace luna::testing {
namespace {

using at::Tensor;

Problem problem_of(const FeatureMapSpec& spec,
                   at::ScalarType dtype = at::kDouble) {
  Random random(31);
  return feature_map_problem(spec, random, dtype);
}

class FeatureMap : public OpTest {
 protected:
  static Problem problem(const FeatureMapSpec& spec) {
    return problem_of(spec, GetParam().dtype);
  }
};
LUNA_ALL_CASES(FeatureMap);

void for_each_kind(const std::function<void(const FeatureMapSpec&)>& check) {
  for (bool nonneg : {false, true}) {
    for (bool shared : {false, true}) {
      for (int64_t heads : {0, 2}) {
        const FeatureMapSpec spec{
            .sizes = {.channels = 3, .heads = heads, .shared_trunk = shared},
            .nonneg = nonneg};
        SCOPED_TRACE(describe(spec));
        check(spec);
      }
    }
  }
}

TEST_P(FeatureMap, MatchesReference) {
  for_each_kind([](const FeatureMapSpec& spec) {
    expect_outputs_match(GetParam(), problem(spec));
  });
}

TEST_P(FeatureMap, GradientsMatchReference) {
  for_each_kind([](const FeatureMapSpec& spec) {
    expect_matches(GetParam(), problem(spec));
  });
}

TEST_P(FeatureMap, AnyRank) {
  for (const std::vector<int64_t>& leading :
       {std::vector<int64_t>{}, {7}, {3, 2}, {2, 3, 4}, {2, 1, 3, 2}}) {
    const FeatureMapSpec spec{.leading = leading};
    SCOPED_TRACE(describe(spec));
    expect_matches(GetParam(), problem(spec));
  }
}

TEST_P(FeatureMap, StridedInputsAgree) {
  for (Layout layout : {Layout::kHeadsInside, Layout::kSliced}) {
    for (int64_t heads : {0, 2}) {
      const FeatureMapSpec spec{.sizes = {.heads = heads}, .layout = layout};
      SCOPED_TRACE(describe(spec));
      expect_matches(GetParam(), problem(spec));
    }
  }
}

TEST_P(FeatureMap, ExpandedBatchAgrees) {
  expect_expanded_batch_matches(GetParam(), problem({.leading = {1, 2, 5}}));
}

TEST_P(FeatureMap, StrideZeroGradients) {
  expect_stride_zero_gradients(GetParam(), problem({}));
}

TEST_P(FeatureMap, EachGradientAlone) {
  expect_each_gradient_alone(GetParam(), problem({}));
}

TEST_P(FeatureMap, CallsCanBeRepeated) {
  expect_calls_can_be_repeated(GetParam(), problem({}));
}

TEST_P(FeatureMap, SameBitsTwice) {
  expect_same_bits_twice(GetParam(), problem({.leading = {1, 1, 3000}}));
}

TEST_P(FeatureMap, WidthsThatAreNoMultipleOfVectors) {
  for (const FeatureMapSizes& sizes :
       {FeatureMapSizes{5, 3, 5, 7}, FeatureMapSizes{1, 1, 1, 1},
        FeatureMapSizes{17, 2, 9, 16}, FeatureMapSizes{8, 8, 8, 64},
        FeatureMapSizes{3, 1, 2, 256}}) {
    const FeatureMapSpec spec{.leading = {1, 2, 13}, .sizes = sizes};
    SCOPED_TRACE(describe(spec));
    expect_matches(GetParam(), problem(spec));
  }
}

TEST_P(FeatureMap, LongSequence) {
  for (int64_t n : {63, 64, 65, 1023, 1025, 5000}) {
    const FeatureMapSpec spec{
        .leading = {1, 1, n},
        .sizes = {.projections = 2, .channels = 2, .hidden = 3}};
    SCOPED_TRACE(describe(spec));
    expect_matches(GetParam(), problem(spec));
  }
}

// On the GPU the ways back differ in where psi and the sums lie: near, psi
// afar, the sums of some channels in a pass of their own.
TEST_P(FeatureMap, ManyChannels) {
  for (const FeatureMapSizes& sizes :
       {FeatureMapSizes{
            .width = 8, .projections = 9, .channels = 16, .hidden = 64},
        FeatureMapSizes{
            .width = 8, .projections = 3, .channels = 33, .hidden = 64},
        FeatureMapSizes{
            .width = 8, .projections = 2, .channels = 128, .hidden = 64},
        FeatureMapSizes{
            .width = 8, .projections = 2, .channels = 264, .hidden = 64},
        FeatureMapSizes{
            .width = 8, .projections = 2, .channels = 8, .hidden = 2000}}) {
    const FeatureMapSpec spec{.leading = {1, 1, 9}, .sizes = sizes};
    SCOPED_TRACE(describe(spec));
    expect_matches(GetParam(), problem(spec));
  }
}

TEST_P(FeatureMap, EmptySequences) {
  for (const std::vector<int64_t>& leading :
       {std::vector<int64_t>{0}, {0, 2, 3}, {2, 2, 0}}) {
    expect_matches(GetParam(), problem({.leading = leading}));
  }
}

TEST_P(FeatureMap, TableGivenEqualsTableBuilt) {
  const Problem built = problem({});
  const Problem given = problem({.table = true});
  const Arguments arguments = stored(built.arguments, GetParam());
  expect_same(evaluate(given.op, arguments), evaluate(built.op, arguments));
}

TEST(FeatureMapValues, IsProjectionMajor) {
  // By hand: u = (3, 2*3 - 1) = (3, 5); channels relu(u) and 1 - relu(u).
  auto numbers = [](std::vector<double> values, at::IntArrayRef sizes) {
    return at::tensor(values, at::kDouble).view(sizes).clone();
  };
  const ops::FeatureMapParameters p{
      numbers({1, 2}, {2, 1}), numbers({0, -1}, {2}),    numbers({1}, {1, 1}),
      numbers({0}, {1, 1}),    numbers({1, -1}, {2, 1}), numbers({0, 1}, {2})};
  const Tensor x = numbers({3}, {1});
  const double r = std::sqrt(0.5);
  expect_close(ops::feature_map(x, p, {.nonneg = false}),
               numbers({3 * r, -2 * r, 5 * r, -4 * r}, {4}), 1e-14, "signed");
  expect_close(ops::feature_map(x, p), numbers({3 * r, 0, 5 * r, 0}, {4}),
               1e-14, "nonneg");
}

TEST(FeatureMapValues, GradientsMatchFiniteDifferences) {
  for_each_kind([](const FeatureMapSpec& spec) {
    FeatureMapSpec small = spec;
    small.leading = {1, 2, 3};
    const Problem problem = problem_of(small, at::kFloat);
    expect_finite_differences(problem.op, problem.arguments);
  });
}

TEST(FeatureMapValues, ChangedInputsAreNoticed) {
  expect_changed_inputs_noticed(
      problem_of({}), {"x", "projection", "hidden_weight", "output_weight"});
}

TEST(FeatureMapValues, DoubleBackwardIsRefused) {
  expect_double_backward_refused(problem_of({}));
}

TEST(FeatureMapValues, SavesNoHiddenLayer) {
  const int64_t n = 4096, width = 8;
  const Problem problem = problem_of(
      {.leading = {1, 1, n}, .sizes = {.width = width, .hidden = 16}});
  const int64_t x = n * width * 4;
  EXPECT_LE(bytes_saved_for_backward(problem, at::kFloat), x + 65536);
}

}  // namespace
}  // namespace luna::testing
