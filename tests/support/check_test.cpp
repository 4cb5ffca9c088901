// The checks can fail.

#include "support/check.h"

#include <ATen/ATen.h>
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include "support/filled_memory.h"
#include "support/random.h"

namespace luna::testing {
namespace {

Arguments numbers() { return {{"x", Random(1).normal({3})}}; }

Tensors square(const Arguments& a) { return {a.at("x") * a.at("x")}; }
// The value of a square, the gradient of another function.
Tensors half_a_square(const Arguments& a) {
  return {a.at("x") * a.at("x").detach()};
}
Tensors almost_a_square(const Arguments& a) {
  return {a.at("x") * a.at("x") * 1.001};
}

TEST(Check, FilledMemoryIsNoNumber) {
  const FilledMemory filled;
  EXPECT_TRUE(at::empty({3}).isnan().all().item<bool>());
}

TEST(Check, FiniteDifferencesAcceptARightGradient) {
  expect_finite_differences(square, numbers());
}

TEST(Check, FiniteDifferencesRejectAWrongGradient) {
  EXPECT_NONFATAL_FAILURE(expect_finite_differences(half_a_square, numbers()),
                          "gradient of x");
}

TEST(Check, MatchesRejectsWrongOutputsAndWrongGradients) {
  const Case c{at::kCPU, at::kDouble, 1e-12, 1e-11};
  expect_matches(c, {numbers(), square, square});
  EXPECT_NONFATAL_FAILURE(
      expect_outputs_match(c, {numbers(), almost_a_square, square}),
      "output 0");
  EXPECT_NONFATAL_FAILURE(expect_matches(c, {numbers(), half_a_square, square}),
                          "gradient of x");
}

TEST(Check, NotANumberIsNeverClose) {
  const at::Tensor one = at::ones({1}), nan = one * NAN;
  EXPECT_NONFATAL_FAILURE(expect_close(nan, one, 1.0, "x"), "x");
  EXPECT_NONFATAL_FAILURE(expect_finite(nan, "x"), "x");
}

}  // namespace
}  // namespace luna::testing
