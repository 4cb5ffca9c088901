#include <luna/ops/nested_causal_attention.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>

#include "support/dropout.h"
#include "support/properties.h"

namespace luna::testing {
namespace {

using at::Tensor;

const std::vector<std::string> kTokens{"query", "pack_key", "key", "value"};
const PackedArguments kPacked{
    {"query", "pack_key", "key", "value"},
    {},
    {"packed_query", "packed_mask", "key_state", "value_state", "count"},
    {2, 0, 0, 0}};

Problem problem_of(const NestedSpec& spec) {
  Random random(71);
  return nested_problem(spec, random);
}

void for_each_kind(const std::function<void(const NestedSpec&)>& check) {
  for (const char* activation : {"softplus", "elu"}) {
    for (bool mask : {false, true}) {
      for (bool state : {false, true}) {
        for (bool shared_query : {false, true}) {
          NestedSpec spec{.mask = mask,
                          .shared_query = shared_query,
                          .state = state,
                          .activation = activation};
          if (shared_query) spec.scale = 0.8;
          SCOPED_TRACE(describe(spec));
          check(spec);
        }
      }
    }
  }
}

class NestedCausalAttention : public OpTest {};
LUNA_ALL_CASES(NestedCausalAttention);

TEST_P(NestedCausalAttention, MatchesReference) {
  for_each_kind([](const NestedSpec& spec) {
    expect_outputs_match(GetParam(), problem_of(spec));
  });
}

TEST_P(NestedCausalAttention, GradientsMatchReference) {
  for_each_kind([](const NestedSpec& spec) {
    expect_matches(GetParam(), problem_of(spec));
  });
}

TEST_P(NestedCausalAttention, StateGradients) {
  expect_each_output_alone(GetParam(),
                           problem_of({.mask = true, .state = true}));
}

TEST_P(NestedCausalAttention, EachGradientAlone) {
  expect_each_gradient_alone(GetParam(), problem_of({.state = true}));
}

TEST_P(NestedCausalAttention, StridedInputsAgree) {
  for (Layout layout : {Layout::kHeadsInside, Layout::kSliced}) {
    for (bool shared_query : {false, true}) {
      const NestedSpec spec{.mask = true,
                            .shared_query = shared_query,
                            .state = true,
                            .layout = layout};
      SCOPED_TRACE(describe(spec));
      expect_matches(GetParam(), problem_of(spec));
    }
  }
}

TEST_P(NestedCausalAttention, ExpandedBatchAgrees) {
  expect_expanded_batch_matches(
      GetParam(), problem_of({.batch = 1, .mask = true, .state = true}));
}

TEST_P(NestedCausalAttention, StrideZeroGradients) {
  expect_stride_zero_gradients(GetParam(), problem_of({.mask = true}));
}

TEST_P(NestedCausalAttention, CallsCanBeRepeated) {
  expect_calls_can_be_repeated(
      GetParam(), problem_of({.n = 100, .state = true, .dropout_p = 0.2}));
}

TEST_P(NestedCausalAttention, SameBitsTwice) {
  expect_same_bits_twice(
      GetParam(),
      problem_of({.batch = 1, .heads = 1, .n = 700, .dropout_p = 0.3}));
}

TEST_P(NestedCausalAttention, DoesNotSeeTheFuture) {
  // So right padding changes nothing.
  expect_future_unseen(GetParam(), problem_of({.n = 150}), kTokens);
}

TEST_P(NestedCausalAttention, PackedEqualsSeparate) {
  for (bool state : {false, true}) {
    for (bool shared_query : {false, true}) {
      const NestedSpec spec{.mask = true,
                            .lengths = {4, 0, 70, 1},
                            .shared_query = shared_query,
                            .state = state};
      SCOPED_TRACE(describe(spec));
      expect_packed_equals_separate(GetParam(), problem_of(spec), kPacked);
      expect_matches(GetParam(), problem_of(spec));
    }
  }
}

TEST_P(NestedCausalAttention, MaskedPartEqualsRemoved) {
  const Problem problem = problem_of({.n = 20, .l = 6});
  const Arguments arguments = stored(problem.arguments, GetParam());
  const Tensor kept =
      (at::arange(6).remainder(3) != 1).to(arguments.at("query").device());
  const Tensor index = kept.nonzero().squeeze(1);
  const Function masked = [&](const Arguments& given) -> Tensors {
    Arguments a = given;
    a["packed_mask"] = kept.expand({2, 6}).contiguous();
    return {problem.op(a)[0]};
  };
  const Function removed = [&](const Arguments& given) -> Tensors {
    Arguments a = given;
    a["packed_query"] = a["packed_query"].index_select(2, index);
    return {problem.op(a)[0]};
  };
  const Results got = evaluate(masked, arguments);
  const Results want = evaluate(removed, arguments);
  expect_close(got.outputs[0], want.outputs[0], GetParam().agreement(),
               "output");
  for (const auto& [name, gradient] : want.gradients) {
    expect_close(got.gradients.at(name), gradient, 2 * GetParam().gradient,
                 "gradient of " + name);
  }
}

TEST_P(NestedCausalAttention, AllSlotsMaskedGivesZero) {
  const Problem problem = problem_of({.mask = true});
  Arguments arguments = stored(problem.arguments, GetParam());
  arguments["packed_mask"] = at::ones_like(arguments["packed_mask"]);
  arguments["packed_mask"][1].fill_(false);
  const Function output = [&](const Arguments& a) -> Tensors {
    return {problem.op(a)[0]};
  };
  const Results results = evaluate(output, arguments);
  EXPECT_EQ(results.outputs[0][1].abs().max().item<double>(), 0.0);
  EXPECT_GT(results.outputs[0][0].abs().max().item<double>(), 0.0);
  for (const auto& [name, gradient] : results.gradients) {
    expect_finite(gradient, name);
    EXPECT_EQ(gradient[1].abs().max().item<double>(), 0.0) << name;
  }
}

TEST_P(NestedCausalAttention, WidthsThatAreNoMultipleOfVectors) {
  for (int64_t width : {1, 5, 33}) {
    for (int64_t value_width : {1, 3, 31}) {
      for (int64_t l : {1, 7, 17}) {
        const NestedSpec spec{.batch = 1,
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

TEST_P(NestedCausalAttention, LongSequence) {
  for (int64_t n : {63, 64, 65, 1023, 1025, 5000}) {
    const NestedSpec spec{.batch = 1, .heads = 1, .n = n, .width = 3};
    SCOPED_TRACE(describe(spec));
    expect_matches(GetParam(), problem_of(spec));
  }
}

TEST_P(NestedCausalAttention, OneToken) {
  expect_matches(GetParam(), problem_of({.n = 1}));
  expect_matches(GetParam(), problem_of({.n = 1, .l = 1, .state = true}));
}

TEST_P(NestedCausalAttention, EmptySequences) {
  for (bool state : {false, true}) {
    for (NestedSpec spec : {NestedSpec{.n = 0}, NestedSpec{.batch = 0}}) {
      spec.state = state;
      SCOPED_TRACE(describe(spec));
      expect_matches(GetParam(), problem_of(spec));
    }
  }
}

TEST_P(NestedCausalAttention, StreamInPiecesEqualsOneCall) {
  const Problem problem = problem_of({.n = 100, .mask = true, .state = true});
  const Function pieces = [&](const Arguments& a) -> Tensors {
    Tensors outputs;
    Arguments piece = a;
    int64_t start = 0;
    for (int64_t length : {1, 40, 0, 59}) {
      for (const std::string& name : kTokens) {
        piece[name] = a.at(name).narrow(2, start, length);
      }
      const Tensors results = problem.op(piece);
      outputs.push_back(results[0]);
      piece["key_state"] = results[1];
      piece["value_state"] = results[2];
      piece["count"] = results[3];
      start += length;
    }
    return {at::cat(outputs, 2), piece["key_state"], piece["value_state"],
            piece["count"]};
  };
  expect_matches(GetParam(), {problem.arguments, pieces, problem.reference});
}

TEST_P(NestedCausalAttention, GivenStateStaysAndReturnedOneIsFresh) {
  for (int64_t n : {0, 4}) {
    const Problem problem = problem_of({.n = n, .state = true});
    const Arguments arguments = stored(problem.arguments, GetParam());
    Arguments before;
    for (const char* name : {"key_state", "value_state", "count"}) {
      before[name] = arguments.at(name).clone();
    }
    const Tensors results = problem.op(arguments);
    for (size_t i = 1; i < results.size(); ++i) {
      Tensor result = results[i];
      result.fill_(7);
    }
    for (const auto& [name, tensor] : before) {
      expect_same(arguments.at(name), tensor, name);
    }
  }
}

TEST_P(NestedCausalAttention, DropoutIsAPureFunctionOfTheSeed) {
  expect_pure_function_of_the_seed(GetParam(),
                                   problem_of({.n = 40, .dropout_p = 0.4}));
}

TEST(NestedCausalAttentionValues, DropoutKeepsTheMean) {
  const double p = 0.3;
  const NestedSpec spec{.batch = 1, .heads = 2, .n = 8, .l = 4};
  NestedSpec dropping = spec;
  dropping.dropout_p = p;
  Problem exact = problem_of(spec), dropped = problem_of(dropping);
  // A query of 0 keeps w uniform, so that the output is linear in what drops.
  exact.arguments["query"].zero_();
  dropped.arguments["query"].zero_();
  const Tensors want = exact.op(exact.arguments);
  const int64_t seeds = 3000;
  Tensors mean(3);
  for (int i = 0; i < 3; ++i) mean[i] = at::zeros_like(want[i]);
  for (int64_t seed = 0; seed < seeds; ++seed) {
    const Tensors got = dropped.op(with_seed(dropped.arguments, seed, 3));
    for (int i = 0; i < 3; ++i) mean[i] += got[i] / seeds;
  }
  // A term's deviation is sqrt(p/(1-p)) = .65 of it, so that of a mean of
  // 3,000 about .012, and less where several terms are added up.
  for (int i = 0; i < 3; ++i) {
    EXPECT_LT(relative_error(mean[i], want[i]), 0.06) << "output " << i;
    const Tensor once = dropped.op(dropped.arguments)[i];
    EXPECT_GT(relative_error(once, want[i]), 0.06) << "output " << i;
  }
}

TEST(NestedCausalAttentionValues, OneDroppedTensorServesBothSums) {
  // Equal keys and values: sum k a^T is then sum a v^T, transposed.
  Problem problem = problem_of({.value_width = 4, .dropout_p = 0.5});
  problem.arguments["value"] = problem.arguments["key"].clone();
  const Tensors results = problem.op(problem.arguments);
  expect_close(results[1].transpose(2, 3), results[2], 1e-13, "states");
}

TEST(NestedCausalAttentionValues, DropoutActsOnTheWeightsToo) {
  // One slot, and a state that outweighs whatever a may lose: y_t is w_t, and
  // that is 1, dropped or doubled.
  Problem problem = problem_of(
      {.n = 64, .l = 1, .value_width = 1, .state = true, .dropout_p = 0.5});
  problem.arguments["value"].fill_(1);
  problem.arguments["packed_query"].zero_();
  problem.arguments["value_state"].fill_(1e9);
  problem.arguments["count"].fill_(1000000000);
  const Tensor output = problem.op(problem.arguments)[0];
  const Tensor dropped = output == 0;
  EXPECT_TRUE(
      ((output - 2).abs() < 1e-3).logical_or(dropped).all().item<bool>());
  const double share = dropped.to(at::kDouble).mean().item<double>();
  EXPECT_NEAR(share, 0.5, 5 * 0.5 / std::sqrt(output.numel()));
}

TEST(NestedCausalAttentionValues, DropoutGradientsMatchFiniteDifferences) {
  for (NestedSpec spec : {NestedSpec{.mask = true, .state = true},
                          NestedSpec{.lengths = {3, 0, 2}}}) {
    spec.dropout_p = 0.4;
    SCOPED_TRACE(describe(spec));
    const Problem problem = problem_of(spec);
    expect_finite_differences(problem.op, problem.arguments);
  }
  const Problem problem =
      problem_of({.batch = 1, .heads = 1, .n = 600, .l = 2, .dropout_p = 0.4});
  const Function of_memory = [&](const Arguments& a) {
    Arguments all = problem.arguments;
    all["packed_query"] = a.at("packed_query");
    return problem.op(all);
  };
  expect_finite_differences(
      of_memory, {{"packed_query", problem.arguments.at("packed_query")}});
}

TEST(NestedCausalAttentionValues, GradientsMatchFiniteDifferences) {
  for_each_kind([](const NestedSpec& spec) {
    NestedSpec small = spec;
    small.heads = 1;
    small.n = 4;
    const Problem problem = problem_of(small);
    expect_finite_differences(problem.op, problem.arguments);
  });
}

TEST(NestedCausalAttentionValues, ChangedInputsAreNoticed) {
  expect_changed_inputs_noticed(
      problem_of({}), {"query", "pack_key", "key", "value", "packed_query"});
}

TEST(NestedCausalAttentionValues, ManySequences) {
  std::vector<int64_t> lengths(60, 0);
  for (size_t i = 0; i < lengths.size(); ++i) lengths[i] = (i * 7) % 5;
  for (const auto& packing :
       {lengths, std::vector<int64_t>{0}, {0, 0, 0}, {0, 700, 0}, {700, 1}}) {
    for (bool state : {false, true}) {
      const NestedSpec spec{.lengths = packing, .state = state};
      SCOPED_TRACE(describe(spec));
      expect_matches({at::kCPU, at::kDouble, 1e-12, 1e-11}, problem_of(spec));
    }
  }
}

TEST(NestedCausalAttentionValues, CountsBeyondInt32) {
  Problem problem = problem_of({.n = 3, .state = true});
  problem.arguments["count"].fill_(int64_t{5'000'000'000});
  expect_matches({at::kCPU, at::kDouble, 1e-12, 1e-11}, problem);
}

TEST(NestedCausalAttentionValues, DoubleBackwardIsRefused) {
  expect_double_backward_refused(problem_of({.mask = true, .state = true}));
}

TEST(NestedCausalAttentionValues, SavesNothingOfSizeNL) {
  const int64_t n = 4096, l = 64, width = 8;
  const Problem problem = problem_of({.batch = 1,
                                      .heads = 1,
                                      .n = n,
                                      .l = l,
                                      .width = width,
                                      .value_width = width});
  const int64_t query = n * width * 4, rows = 2 * n * 4;
  EXPECT_LE(bytes_saved_for_backward(problem, at::kFloat),
            query + rows + 65536);
  EXPECT_LT(query + rows + 65536, n * l * 4 / 4);  // the test can fail
}

}  // namespace
}  // namespace luna::testing
