// Every kernel family once, at small shapes, forward and backward: what
// compute-sanitizer watches (scripts/gpu), under which the other tests would
// take hours.

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include "ops/token_linear.h"
#include "support/convolution.h"
#include "support/dropout.h"
#include "support/filled_memory.h"
#include "support/properties.h"
#include "support/steps.h"

namespace luna::testing {
namespace {

class EveryKernel : public OpTest {
 protected:
  template <typename Spec>
  void expect(const Spec& spec) {
    SCOPED_TRACE(describe(spec));
    expect_matches(GetParam(), problem(spec));
  }
  Problem problem(UniversalSpec spec) {
    spec.eps = eps_for(GetParam().dtype);
    return universal_problem(spec, random_, GetParam().dtype);
  }
  Problem problem(const LinearSpec& s) { return linear_problem(s, random_); }
  Problem problem(const PackSpec& s) { return pack_problem(s, random_); }
  Problem problem(const UnpackSpec& s) { return unpack_problem(s, random_); }
  Problem problem(const NestedSpec& s) { return nested_problem(s, random_); }

  Random random_{131};
  const FilledMemory filled_;
};
LUNA_ALL_CASES(EveryKernel);

/// A sequence in two tiles, and packed ones with an empty one among them.
UniversalSpec universal(int64_t width, int64_t projections, bool packed) {
  UniversalSpec spec{.batch = 1,
                     .n = 70,
                     .m = 70,
                     .value_width = width,
                     .sizes = {.width = width,
                               .projections = projections,
                               .channels = 8,
                               .hidden = 2},
                     .weight = Weight::kFloat};
  if (packed) {
    spec.lengths_q = {1, 0, 66};
    spec.lengths_k = {3, 5, 65};
    spec.state = true;
  }
  return spec;
}

TEST_P(EveryKernel, UniversalOfWidth32) { expect(universal(32, 8, false)); }
TEST_P(EveryKernel, UniversalOfWidth64) { expect(universal(64, 8, false)); }
TEST_P(EveryKernel, UniversalOfWidth128) { expect(universal(128, 8, false)); }
TEST_P(EveryKernel, UniversalOf16Projections) {
  expect(universal(64, 16, false));
}
TEST_P(EveryKernel, UniversalPacked) { expect(universal(64, 8, true)); }
TEST_P(EveryKernel, UniversalOfEachHead) {
  UniversalSpec spec = universal(64, 8, false);
  spec.sizes.heads = spec.heads;
  expect(spec);
}
TEST_P(EveryKernel, UniversalCausal) {
  UniversalSpec spec = universal(64, 8, false);
  spec.causal = true;
  expect(spec);
}
TEST_P(EveryKernel, UniversalCausalPacked) {
  UniversalSpec spec = universal(64, 8, true);
  spec.lengths_k = spec.lengths_q;
  spec.causal = true;
  expect(spec);
}
TEST_P(EveryKernel, UniversalOfShortSequences) {
  UniversalSpec spec = universal(64, 8, false);
  spec.heads = 18;  // a fourth of the tokens
  expect(spec);
}
TEST_P(EveryKernel, UniversalOfManyProjections) {
  for (const bool causal : {false, true}) {
    expect(UniversalSpec{
        .batch = 1,
        .n = 21,
        .m = 21,
        .value_width = 32,
        .sizes = {.width = 32, .projections = 128, .channels = 1, .hidden = 2},
        .causal = causal});
  }
}
TEST_P(EveryKernel, Linear) {
  for (const bool causal : {false, true}) {
    expect(LinearSpec{.n = 70,
                      .m = 70,
                      .width = 16,
                      .value_width = 16,
                      .weight = Weight::kFloat,
                      .causal = causal,
                      .state = true});
  }
}

TEST_P(EveryKernel, PackAndUnpack) {
  // By the slots: few, by tensor cores, by a warpgroup, more than it takes
  // backward.
  for (const int64_t l : {16, 40, 100, 260}) {
    expect(PackSpec{.batch = 1,
                    .heads = 1,
                    .l = l,
                    .m = 70,
                    .width = 64,
                    .value_width = 64,
                    .weight = Weight::kBool});
    expect(UnpackSpec{.batch = 1,
                      .heads = 1,
                      .n = 70,
                      .l = l,
                      .width = 64,
                      .value_width = 64,
                      .weight = Weight::kBool});
  }
}
TEST_P(EveryKernel, PackAndUnpackOfPackedSequences) {
  for (const int64_t l : {16, 100}) {
    expect(PackSpec{.heads = 1,
                    .l = l,
                    .width = 64,
                    .value_width = 64,
                    .lengths_k = {1, 0, 66}});
    expect(UnpackSpec{.heads = 1,
                      .l = l,
                      .width = 64,
                      .value_width = 64,
                      .lengths_q = {1, 0, 66}});
  }
}
TEST_P(EveryKernel, PackAndUnpackOfNarrowRows) {
  for (const std::vector<int64_t>& lengths :
       {std::vector<int64_t>{}, std::vector<int64_t>{1, 0, 66}}) {
    expect(PackSpec{.heads = 2,
                    .l = 100,
                    .m = 70,
                    .width = 8,
                    .value_width = 40,
                    .lengths_k = lengths});
    expect(UnpackSpec{.heads = 2,
                      .n = 70,
                      .l = 100,
                      .width = 40,
                      .value_width = 8,
                      .lengths_q = lengths});
  }
}
TEST_P(EveryKernel, PackAndUnpackWithDropout) {
  for (const int64_t l : {16, 100}) {
    expect_pure_function_of_the_seed(GetParam(),
                                     pack_problem({.heads = 1,
                                                   .l = l,
                                                   .m = 40,
                                                   .width = 64,
                                                   .value_width = 64,
                                                   .dropout_p = 0.3},
                                                  random_));
    expect_pure_function_of_the_seed(GetParam(),
                                     unpack_problem({.heads = 1,
                                                     .n = 40,
                                                     .l = l,
                                                     .width = 64,
                                                     .value_width = 64,
                                                     .dropout_p = 0.3},
                                                    random_));
  }
}
TEST_P(EveryKernel, NestedCausal) {
  for (const int64_t l : {16, 128, 130}) {
    expect(NestedSpec{.batch = 1,
                      .heads = 1,
                      .n = 70,
                      .l = l,
                      .width = 64,
                      .value_width = 64,
                      .state = true});
  }
}

TEST_P(EveryKernel, Steps) {
  for (const int64_t width : {64, 24}) {
    LinearSpec linear{.n = 1,
                      .m = 1,
                      .width = width,
                      .value_width = width,
                      .weight = Weight::kBool,
                      .state = true};
    expect_outputs_match(GetParam(), linear_step_problem(linear, random_));
    UniversalSpec spec = universal(width, 8, false);
    spec.n = spec.m = 1;
    spec.state = spec.table = true;
    expect_outputs_match(
        GetParam(), universal_step_problem(spec, random_, GetParam().dtype));
    expect_outputs_match(GetParam(), nested_step_problem({.n = 1,
                                                          .l = 16,
                                                          .width = width,
                                                          .value_width = width,
                                                          .state = true},
                                                         random_));
    expect_outputs_match(GetParam(), unpack_problem({.n = 1,
                                                     .l = 16,
                                                     .width = width,
                                                     .value_width = width,
                                                     .weight = Weight::kBool},
                                                    random_));
  }
}
TEST_P(EveryKernel, StepsOfManyStates) {
  expect_outputs_match(GetParam(), linear_step_problem({.batch = 300,
                                                        .n = 1,
                                                        .m = 1,
                                                        .width = 64,
                                                        .value_width = 64,
                                                        .state = true},
                                                       random_));
}
TEST_P(EveryKernel, LocalSum) {
  // Walks of lines and squares, two of a row; then a thread a number.
  expect_matches(GetParam(), local_sum_problem({2, 70, 66}, {1, 5}));
  expect_matches(GetParam(), local_sum_problem({2, 80, 6}, {5, 5}, 40));
  expect_matches(GetParam(), local_sum_problem({2, 24, 3}, {3, 3}, 6));
  expect_matches(GetParam(), local_sum_problem({1, 70, 66}, {1, 9}));
}
TEST_P(EveryKernel, TokenLinear) {
  const c10::NoGradGuard no_grad;
  const auto there =
      at::TensorOptions().dtype(GetParam().dtype).device(GetParam().device);
  at::manual_seed(9);
  for (const int64_t in : {64, 1024, 2048}) {  // one block, clusters
    for (const int64_t rows : {1, 9, 33, 64}) {
      const auto x = at::randn({rows, in}).to(there);
      const auto weight = at::randn({24, in}).to(there);
      const auto bias = at::randn({24}).to(there);
      expect_close(ops::token_linear(x, weight, bias),
                   ops::plain_token_linear(x.cpu().to(at::kDouble),
                                           weight.cpu().to(at::kDouble),
                                           bias.cpu().to(at::kDouble), false),
                   GetParam().agreement(), "output");
    }
  }
}

}  // namespace
}  // namespace luna::testing
