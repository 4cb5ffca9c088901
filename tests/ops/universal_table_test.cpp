// psi as a table: the corners that a piecewise linear function has. What a
// table holds is seen through feature_map, with one projection that is 1.

#include <luna/ops/universal_table.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "support/problems.h"
#include "support/reference.h"

namespace luna::testing {
namespace {

using at::Tensor;

Tensor numbers(std::vector<double> values, at::IntArrayRef sizes) {
  return at::tensor(values, at::kDouble).view(sizes).clone();
}

/// psi of one channel over the points u, all of it in the arguments.
struct Psi {
  std::vector<double> hidden_weight, hidden_bias, output_weight;
  double output_bias = 0.0;
};

Arguments arguments_of(const Psi& psi, const Tensor& u) {
  const int64_t h = psi.hidden_weight.size();
  Arguments a;
  a["x"] = u.view({-1, 1});
  put(a, {numbers({1}, {1, 1}), numbers({0}, {1}),
          numbers(psi.hidden_weight, {1, h}), numbers(psi.hidden_bias, {1, h}),
          numbers(psi.output_weight, {1, h}), numbers({psi.output_bias}, {1})});
  return a;
}

Problem problem_of(const Arguments& arguments, bool nonneg) {
  return {
      arguments,
      [nonneg](const Arguments& a) -> Tensors {
        const auto p = parameters_of(a);
        return {ops::feature_map(
            a.at("x"), p,
            {.nonneg = nonneg,
             .table = ops::universal_table(p.hidden_weight, p.hidden_bias,
                                           p.output_weight, p.output_bias)})};
      },
      [nonneg](const Arguments& a) -> Tensors {
        return {reference::feature_map(a.at("x"), parameters_of(a), nonneg)};
      }};
}

void expect_exact(const Case& c, const Psi& psi, const Tensor& u) {
  for (bool nonneg : {false, true}) {
    SCOPED_TRACE(nonneg ? "nonneg" : "signed");
    expect_matches(c, problem_of(arguments_of(psi, u), nonneg));
  }
}

/// Points between the multiples of 1/4, where the knots below lie.
Tensor grid() { return at::arange(-40, 41, at::kDouble) / 4 + 0.125; }

class UniversalTable : public OpTest {};
LUNA_ALL_CASES(UniversalTable);

TEST_P(UniversalTable, HoldsPsiExactly) {
  expect_exact(GetParam(),
               {{1, -2, 0.5, -1}, {0, 1, 2, 3}, {1, 1.5, -2, 0.25}, 0.375},
               grid());
}

TEST_P(UniversalTable, OneUnit) {
  expect_exact(GetParam(), {{1}, {-1}, {2}, 1}, grid());
  expect_exact(GetParam(), {{-1}, {-1}, {2}, 1}, grid());
}

TEST_P(UniversalTable, EqualKnots) {
  // Four units bend at 1, two of them from the other side, one at -2.
  expect_exact(GetParam(),
               {{1, 2, -1, -4, 1}, {-1, -2, 1, 4, 2}, {1, -1, 0.5, 1, 1}, 0.3},
               grid());
  // All at one knot, bends that cancel.
  expect_exact(GetParam(), {{1, 1, 2}, {-1, -1, -2}, {1, 1, -1}, 0.3}, grid());
}

TEST_P(UniversalTable, ZeroSlopes) {
  // No output weight anywhere; then a flat middle: 1, and 0 beyond |u| > 1.
  expect_exact(GetParam(), {{1, -1}, {0, 1}, {0, 0}, 0.5}, grid());
  expect_exact(GetParam(), {{1, 1, 1, 1}, {2, 1, -1, -2}, {1, -1, -1, 1}, 0},
               grid());
}

TEST_P(UniversalTable, DeadUnits) {
  // hidden_weight 0 and hidden_bias below 0: never active, no gradient.
  expect_exact(GetParam(), {{0, 1, 0}, {-1, 0.5, -2}, {3, 1, 5}, 0.25}, grid());
  const Results results = evaluate(
      problem_of(arguments_of({{0, 1}, {-1, 0.5}, {3, 1}, 0.25}, grid()), true)
          .op,
      stored(arguments_of({{0, 1}, {-1, 0.5}, {3, 1}, 0.25}, grid()),
             GetParam()));
  for (const char* name : {"hidden_weight", "hidden_bias", "output_weight"}) {
    EXPECT_EQ(results.gradients.at(name)[0][0].item<double>(), 0.0) << name;
  }
}

TEST_P(UniversalTable, KnotsAtInfinity) {
  // hidden_weight 0 and hidden_bias above 0: always active, a constant, with
  // gradients to its bias, its output weight and (as u) its hidden weight.
  expect_exact(GetParam(), {{0, 1, 0}, {1, 0.5, 2}, {0.5, 1, -0.125}, 0.25},
               grid());
  // All units of that kind; and 0 * u + 0, whose ReLU counts as inactive.
  expect_exact(GetParam(), {{0, 0}, {1, 3}, {0.5, 0.25}, 0.25}, grid());
  expect_exact(GetParam(), {{0, 1}, {0, 0.5}, {2, 1}, 0.25}, grid());
}

TEST_P(UniversalTable, NearlyZeroHiddenWeight) {
  // Knots at -+1e6 and far beyond every argument.
  expect_exact(GetParam(), {{1e-6, -1e-6, 1}, {1, 1, 0.5}, {1, 0.5, 1}, 0.25},
               grid());
}

TEST_P(UniversalTable, HugeArguments) {
  const double largest = GetParam().dtype == at::kHalf ? 2e4 : 1e30;
  const Tensor u = numbers({-largest, -1e4, -1, 1, 1e4, largest}, {6}) * 0.9375;
  expect_exact(GetParam(), {{1, -2}, {0.25, 0.5}, {1, 0.75}, 0.5}, u);
}

TEST_P(UniversalTable, ArgumentOnAKnot) {
  // ReLU's gradient at 0 is 0, from whichever side the unit is active.
  const Tensor u = numbers({-2, 0, 1, 3}, {4});
  expect_exact(GetParam(), {{1, -1, 1}, {2, 1, 0}, {1, 1, 1}, 0.25}, u);
  // psi itself at 0: 2 - |u| at -2 and 2 (no gradient with the output ReLU).
  expect_exact(GetParam(), {{1, -1}, {0, 0}, {-1, -1}, 2},
               numbers({-2, -1, 1, 2}, {4}));
}

TEST_P(UniversalTable, ManyUnits) {
  Random random(41);
  for (int64_t hidden : {2, 3, 15, 16, 17, 64, 255, 256, 300}) {
    FeatureMapSpec spec{.leading = {50}, .sizes = {.hidden = hidden}};
    spec.table = true;
    SCOPED_TRACE(describe(spec));
    expect_matches(GetParam(),
                   feature_map_problem(spec, random, GetParam().dtype));
  }
}

TEST_P(UniversalTable, SharedTrunk) {
  Random random(42);
  FeatureMapSpec spec{
      .leading = {50},
      .sizes = {.channels = 4, .hidden = 9, .shared_trunk = true}};
  spec.table = true;
  expect_matches(GetParam(),
                 feature_map_problem(spec, random, GetParam().dtype));
}

TEST(UniversalTableValues, IsNotDifferentiated) {
  Random random(43);
  auto p = random_parameters(random, {});
  for (Tensor* tensor :
       {&p.hidden_weight, &p.hidden_bias, &p.output_weight, &p.output_bias}) {
    tensor->requires_grad_();
  }
  const Tensor table = ops::universal_table(p.hidden_weight, p.hidden_bias,
                                            p.output_weight, p.output_bias);
  EXPECT_FALSE(table.requires_grad());
  // Gradients go past the table to the parameters.
  EXPECT_TRUE(ops::feature_map(random.normal({3, 4}), p, {.table = table})
                  .requires_grad());
}

TEST(UniversalTableValues, SameBitsTwice) {
  Random random(44);
  const auto p = random_parameters(random, {.channels = 8, .hidden = 64});
  auto build = [&] {
    return ops::universal_table(p.hidden_weight, p.hidden_bias, p.output_weight,
                                p.output_bias);
  };
  expect_same(build(), build(), "table");
}

TEST(UniversalTableValues, TakesStridedParameters) {
  Random random(45);
  const auto p = random_parameters(random, {.channels = 3, .hidden = 7});
  auto spread = [](const Tensor& t) { return relayout(t, Layout::kSliced); };
  expect_same(
      ops::universal_table(spread(p.hidden_weight), spread(p.hidden_bias),
                           spread(p.output_weight), spread(p.output_bias)),
      ops::universal_table(p.hidden_weight, p.hidden_bias, p.output_weight,
                           p.output_bias),
      "table");
}

}  // namespace
}  // namespace luna::testing
