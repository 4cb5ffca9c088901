#include <luna/ops/universal_attention.h>
#include <luna/ops/universal_table.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>

#include "ops/universal_problems.h"
#include "support/properties.h"
#include "support/reference.h"

namespace luna::testing {
namespace {

using at::Tensor;

const PackedArguments kPacked{
    {"query"}, {"key", "value", "key_weight"}, {"state"}, {2, 0}};

/// Every combination of what changes the formula.
void for_each_kind(const std::function<void(const UniversalSpec&)>& check) {
  for (bool causal : {false, true}) {
    for (bool nonneg : {false, true}) {
      for (bool state : {false, true}) {
        for (Weight weight :
             {Weight::kNone, Weight::kBool, Weight::kFloatPerHead}) {
          UniversalSpec spec{.m = causal ? 6 : 9, .weight = weight};
          spec.causal = causal;
          spec.nonneg = nonneg;
          spec.state = state;
          SCOPED_TRACE(describe(spec));
          check(spec);
        }
      }
    }
  }
}

class UniversalAttention : public UniversalOpTest {};
LUNA_ALL_CASES(UniversalAttention);

TEST_P(UniversalAttention, MatchesReference) {
  for_each_kind([](const UniversalSpec& spec) {
    expect_outputs_match(GetParam(), problem(spec));
  });
}

TEST_P(UniversalAttention, GradientsMatchReference) {
  for_each_kind([](const UniversalSpec& spec) {
    expect_matches(GetParam(), problem(spec));
  });
}

TEST_P(UniversalAttention, PerHeadProjection) {
  for (bool causal : {false, true}) {
    const UniversalSpec spec{
        .heads = 3, .sizes = {.heads = 3}, .causal = causal};
    SCOPED_TRACE(describe(spec));
    expect_matches(GetParam(), problem(spec));
  }
}

TEST_P(UniversalAttention, SharedTrunk) {
  for (bool causal : {false, true}) {
    const UniversalSpec spec{.sizes = {.channels = 3, .shared_trunk = true},
                             .causal = causal};
    SCOPED_TRACE(describe(spec));
    expect_matches(GetParam(), problem(spec));
  }
}

TEST_P(UniversalAttention, SharedTrunkEqualsRepeatedChannels) {
  const Problem shared =
      problem({.sizes = {.channels = 3, .shared_trunk = true}});
  const Arguments arguments = stored(shared.arguments, GetParam());
  const Function repeated = [&](const Arguments& given) {
    Arguments a = given;
    a["hidden_weight"] = a["hidden_weight"].repeat({3, 1});
    a["hidden_bias"] = a["hidden_bias"].repeat({3, 1});
    return shared.op(a);
  };
  const Results got = evaluate(shared.op, arguments);
  const Results want = evaluate(repeated, arguments);
  expect_close(got.outputs[0], want.outputs[0], GetParam().agreement(),
               "output");
  for (const auto& [name, gradient] : want.gradients) {
    expect_close(got.gradients.at(name), gradient, 2 * GetParam().gradient,
                 "gradient of " + name);
  }
}

TEST_P(UniversalAttention, TableGivenEqualsTableBuilt) {
  for (bool causal : {false, true}) {
    UniversalSpec spec{.weight = Weight::kFloat, .causal = causal};
    const Problem built = problem(spec);
    spec.table = true;
    const Problem given = problem(spec);
    const Arguments arguments = stored(built.arguments, GetParam());
    expect_same(evaluate(given.op, arguments), evaluate(built.op, arguments));
  }
}

TEST_P(UniversalAttention, EqualsLinearAttentionOfFeatures) {
  for (bool causal : {false, true}) {
    const Problem fused =
        problem({.weight = Weight::kFloat, .causal = causal, .state = true});
    Case c = GetParam();
    if (c.low_precision()) return;  // features would be rounded on the way
    const Arguments a = stored(fused.arguments, c);
    const auto p = parameters_of(a);
    const Tensors got = fused.op(a);
    const auto [output, state] =
        ops::linear_attention(ops::feature_map(a.at("query"), p),
                              ops::feature_map(a.at("key"), p), a.at("value"),
                              {.key_weight = a.at("key_weight"),
                               .causal = causal,
                               .state = a.at("state")});
    expect_close(got[0], output, c.agreement(), "output");
    expect_close(got[1], state, c.agreement(), "state");
  }
}

TEST_P(UniversalAttention, StateGradients) {
  for (bool causal : {false, true}) {
    const UniversalSpec spec{
        .weight = Weight::kFloat, .causal = causal, .state = true};
    SCOPED_TRACE(describe(spec));
    expect_each_output_alone(GetParam(), problem(spec));
  }
}

TEST_P(UniversalAttention, EachGradientAlone) {
  for (bool causal : {false, true}) {
    expect_each_gradient_alone(
        GetParam(),
        problem({.weight = Weight::kFloat, .causal = causal, .state = true}));
  }
}

TEST_P(UniversalAttention, StridedInputsAgree) {
  for (Layout layout : {Layout::kHeadsInside, Layout::kSliced}) {
    for (bool causal : {false, true}) {
      const UniversalSpec spec{.weight = Weight::kFloatPerHead,
                               .causal = causal,
                               .state = true,
                               .table = causal,
                               .layout = layout};
      SCOPED_TRACE(describe(spec));
      expect_matches(GetParam(), problem(spec));
    }
  }
}

TEST_P(UniversalAttention, KeepsTheMemoryOrder) {
  for (bool causal : {false, true}) {
    expect_memory_order_kept(GetParam(), problem({.causal = causal}));
    expect_memory_order_kept(  // the GPU's fused kernels
        GetParam(), problem({.n = 70,
                             .m = 70,
                             .value_width = 64,
                             .sizes = {.width = 64,
                                       .projections = 8,
                                       .channels = 8,
                                       .hidden = 8},
                             .causal = causal}));
  }
}

TEST_P(UniversalAttention, ExpandedBatchAgrees) {
  for (bool causal : {false, true}) {
    expect_expanded_batch_matches(GetParam(), problem({.batch = 1,
                                                       .weight = Weight::kBool,
                                                       .causal = causal,
                                                       .state = true}));
  }
}

TEST_P(UniversalAttention, StrideZeroGradients) {
  for (bool causal : {false, true}) {
    expect_stride_zero_gradients(
        GetParam(), problem({.weight = Weight::kFloat, .causal = causal}));
  }
}

TEST_P(UniversalAttention, CallsCanBeRepeated) {
  for (bool causal : {false, true}) {
    expect_calls_can_be_repeated(
        GetParam(),
        problem({.n = 100, .m = 100, .causal = causal, .state = true}));
  }
}

TEST_P(UniversalAttention, SameBitsTwice) {
  for (bool causal : {false, true}) {
    expect_same_bits_twice(GetParam(), problem({.batch = 1,
                                                .heads = 1,
                                                .n = 700,
                                                .m = 700,
                                                .weight = Weight::kFloat,
                                                .causal = causal}));
  }
}

TEST_P(UniversalAttention, DoesNotSeeTheFuture) {
  expect_future_unseen(
      GetParam(),
      problem({.n = 150, .m = 150, .weight = Weight::kFloat, .causal = true}),
      {"query", "key", "value", "key_weight"});
}

TEST_P(UniversalAttention, PackedEqualsSeparate) {
  for (bool causal : {false, true}) {
    for (bool state : {false, true}) {
      UniversalSpec spec{.weight = Weight::kFloat,
                         .lengths_q = {3, 0, 70, 1},
                         .lengths_k = {3, 0, 70, 1}};
      if (!causal) spec.lengths_k = {0, 4, 9, 66};
      spec.causal = causal;
      spec.state = state;
      SCOPED_TRACE(describe(spec));
      const Problem packed = problem(spec);
      expect_packed_equals_separate(GetParam(), packed, kPacked);
      expect_matches(GetParam(), packed);
    }
  }
}

TEST_P(UniversalAttention, MaskedPartEqualsRemoved) {
  expect_masked_part_equals_removed(GetParam(), problem({.m = 20}));
}

TEST_P(UniversalAttention, PaddingChangesNothing) {
  expect_padding_changes_nothing(GetParam(), problem({.m = 20}));
  expect_padding_changes_nothing(
      GetParam(), problem({.m = 20, .weight = Weight::kFloatPerHead}));
}

TEST_P(UniversalAttention, WeightGradientSumsOverHeads) {
  expect_weight_gradient_sums_over_heads(
      GetParam(), problem({.heads = 3, .weight = Weight::kFloat}));
}

TEST_P(UniversalAttention, WidthsThatAreNoMultipleOfVectors) {
  for (const FeatureMapSizes& sizes :
       {FeatureMapSizes{5, 3, 5, 7}, FeatureMapSizes{1, 1, 1, 1},
        FeatureMapSizes{17, 2, 9, 16}, FeatureMapSizes{8, 8, 8, 64},
        FeatureMapSizes{3, 5, 1, 33}}) {
    for (bool causal : {false, true}) {
      const UniversalSpec spec{.n = 13,
                               .m = 13,
                               .value_width = sizes.width == 8 ? 8 : 3,
                               .sizes = sizes,
                               .causal = causal};
      SCOPED_TRACE(describe(spec));
      expect_matches(GetParam(), problem(spec));
    }
  }
}

TEST_P(UniversalAttention, LongSequence) {
  for (int64_t n : {63, 64, 65, 1023, 1025, 5000}) {
    for (bool causal : {false, true}) {
      const UniversalSpec spec{
          .batch = 1,
          .heads = 1,
          .n = n,
          .m = n,
          .sizes = {.projections = 2, .channels = 2, .hidden = 3},
          .weight = Weight::kFloat,
          .causal = causal};
      SCOPED_TRACE(describe(spec));
      expect_matches(GetParam(), problem(spec));
    }
  }
}

TEST_P(UniversalAttention, OneToken) {
  for (bool causal : {false, true}) {
    expect_matches(GetParam(), problem({.n = 1, .m = 1, .causal = causal}));
  }
}

TEST_P(UniversalAttention, EmptySequences) {
  for (bool state : {false, true}) {
    for (UniversalSpec spec :
         {UniversalSpec{.n = 0}, UniversalSpec{.m = 0},
          UniversalSpec{.n = 0, .m = 0}, UniversalSpec{.batch = 0},
          UniversalSpec{.n = 0, .m = 0, .causal = true},
          UniversalSpec{.batch = 0, .causal = true}}) {
      spec.state = state;
      SCOPED_TRACE(describe(spec));
      expect_matches(GetParam(), problem(spec));
    }
  }
}

TEST_P(UniversalAttention, AllKeysMaskedGivesZero) {
  for (bool causal : {false, true}) {
    for (Weight weight : {Weight::kBool, Weight::kFloat}) {
      const Problem p = problem({.weight = weight, .causal = causal});
      Arguments arguments = stored(p.arguments, GetParam());
      Tensor mask = at::ones_like(arguments["key_weight"]);
      mask[1].zero_();
      arguments["key_weight"] = mask;
      const Function output = [&](const Arguments& a) -> Tensors {
        return {p.op(a)[0]};
      };
      const Results results = evaluate(output, arguments);
      EXPECT_EQ(results.outputs[0][1].abs().max().item<double>(), 0.0);
      for (const char* name : {"query", "key", "value", "key_weight"}) {
        const auto gradient = find(results.gradients, name);
        if (!gradient) continue;
        expect_finite(*gradient, name);
        EXPECT_EQ((*gradient)[1].abs().max().item<double>(), 0.0) << name;
      }
      // With nothing else in the batch, the parameters get nothing either.
      arguments["key_weight"] = at::zeros_like(mask);
      for (const auto& [name, gradient] :
           evaluate(output, arguments).gradients) {
        EXPECT_EQ(gradient.abs().max().item<double>(), 0.0) << name;
      }
    }
  }
}

TEST_P(UniversalAttention, StreamInPiecesEqualsOneCall) {
  const Problem whole = problem({.n = 100,
                                 .m = 100,
                                 .weight = Weight::kFloat,
                                 .causal = true,
                                 .state = true});
  const Function pieces = [&](const Arguments& a) -> Tensors {
    Tensors outputs;
    Arguments piece = a;
    int64_t start = 0;
    for (int64_t length : {1, 40, 0, 59}) {
      for (const char* name : {"query", "key", "value"}) {
        piece[name] = a.at(name).narrow(2, start, length);
      }
      piece["key_weight"] = a.at("key_weight").narrow(1, start, length);
      const Tensors results = whole.op(piece);
      outputs.push_back(results[0]);
      piece["state"] = results[1];
      start += length;
    }
    return {at::cat(outputs, 2), piece["state"]};
  };
  expect_matches(GetParam(), {whole.arguments, pieces, whole.reference});
}

TEST_P(UniversalAttention, QueryAgainstFinishedState) {
  const Problem whole = problem({.n = 5, .m = 40, .weight = Weight::kFloat});
  const Function in_two_calls = [&](const Arguments& a) -> Tensors {
    Arguments keys_only = a, queries_only = a;
    keys_only["query"] = a.at("query").narrow(2, 0, 0);
    queries_only["state"] = whole.op(keys_only)[1];
    for (const char* name : {"key", "value"}) {
      queries_only[name] = a.at(name).narrow(2, 0, 0);
    }
    queries_only["key_weight"] = a.at("key_weight").narrow(1, 0, 0);
    return whole.op(queries_only);
  };
  expect_matches(GetParam(), {whole.arguments, in_two_calls, whole.reference});
}

TEST_P(UniversalAttention, ParametersInTheInputsDtype) {
  const Case c = GetParam();
  Problem p = problem({.weight = Weight::kFloat});
  // Rounded like the inputs, so that both calls see the same numbers.
  Arguments wide = stored(p.arguments, c), narrow = wide;
  for (const char* name : {"projection", "projection_bias", "hidden_weight",
                           "hidden_bias", "output_weight", "output_bias"}) {
    narrow[name] = wide[name].to(c.dtype);
    wide[name] = narrow[name].to(wide[name].options());
  }
  const Results got = evaluate(p.op, narrow), want = evaluate(p.op, wide);
  expect_close(got.outputs[0], want.outputs[0], c.agreement(), "output");
  for (const auto& [name, gradient] : got.gradients) {
    EXPECT_EQ(gradient.scalar_type(), narrow.at(name).scalar_type()) << name;
    EXPECT_LE(relative_error(gradient, want.gradients.at(name),
                             0.1 * largest_norm(want.gradients)),
              2 * c.gradient)
        << name;
  }
}

TEST(UniversalAttentionValues, Float32ParametersServeFloat64Inputs) {
  const Problem p = problem_of({.weight = Weight::kFloat}, at::kFloat);
  Arguments mixed = p.arguments;
  for (const char* name : {"projection", "projection_bias", "hidden_weight",
                           "hidden_bias", "output_weight", "output_bias"}) {
    mixed[name] = mixed[name].to(at::kFloat);
  }
  const Results got = evaluate(p.op, mixed);
  const Results want = evaluate(p.reference, p.arguments);
  EXPECT_EQ(got.outputs[0].scalar_type(), at::kDouble);
  expect_close(got.outputs[0], want.outputs[0], 1e-12, "output");
  for (const auto& [name, gradient] : want.gradients) {
    const bool parameter = mixed.at(name).scalar_type() == at::kFloat;
    expect_close(got.gradients.at(name), gradient, parameter ? 1e-6 : 1e-11,
                 name);
  }
}

TEST(UniversalAttentionValues, GradientsMatchFiniteDifferences) {
  for_each_kind([](const UniversalSpec& spec) {
    UniversalSpec small = spec;
    small.batch = 1;
    small.n = 2;
    small.m = spec.causal ? 2 : 3;
    small.sizes = {.width = 2, .projections = 2, .channels = 2, .hidden = 3};
    small.sizes.shared_trunk = spec.state;
    small.sizes.heads = spec.nonneg ? 2 : 0;
    // Drawn as for float32, far from knots: differences must not cross one.
    Problem problem = problem_of(small, at::kFloat);
    auto weight = problem.arguments.find("key_weight");
    if (weight != problem.arguments.end()) {
      if (weight->second.is_floating_point()) weight->second += 0.1;
    }
    expect_finite_differences(problem.op, problem.arguments);
  });
}

TEST(UniversalAttentionValues, ZeroWeightGradientIsFinite) {
  for (bool causal : {false, true}) {
    expect_zero_weight_gradient(
        problem_of({.weight = Weight::kFloat, .causal = causal}));
  }
}

TEST(UniversalAttentionValues, ChangedInputsAreNoticed) {
  for (bool causal : {false, true}) {
    expect_changed_inputs_noticed(
        problem_of({.causal = causal}),
        {"query", "key", "value", "projection", "hidden_weight", "hidden_bias",
         "output_weight"});
  }
}

TEST(UniversalAttentionValues, ManySequences) {
  std::vector<int64_t> lengths(60, 0);
  for (size_t i = 0; i < lengths.size(); ++i) lengths[i] = (i * 7) % 5;
  for (const auto& packing :
       {lengths, std::vector<int64_t>{0}, {0, 0, 0}, {0, 700, 0}, {700, 1}}) {
    for (bool causal : {false, true}) {
      const UniversalSpec spec{.lengths_q = packing,
                               .lengths_k = packing,
                               .causal = causal,
                               .state = true};
      SCOPED_TRACE(describe(spec));
      expect_matches({at::kCPU, at::kDouble, 1e-12, 1e-11}, problem_of(spec));
    }
  }
}

TEST(UniversalAttentionValues, DoubleBackwardIsRefused) {
  for (bool causal : {false, true}) {
    expect_double_backward_refused(problem_of(
        {.weight = Weight::kFloat, .causal = causal, .state = true}));
  }
}

TEST(UniversalAttentionValues, DeadFeaturesGiveZero) {
  // psi is below 0 everywhere, so phi = 0 and the guard holds in every row.
  Problem problem = problem_of({});
  problem.arguments["output_weight"].zero_();
  problem.arguments["output_bias"].fill_(-1);
  const Results results = evaluate(problem.op, problem.arguments);
  EXPECT_EQ(results.outputs[0].abs().max().item<double>(), 0.0);
  for (const auto& [name, gradient] : results.gradients) {
    EXPECT_EQ(gradient.abs().max().item<double>(), 0.0) << name;
  }
}

TEST(UniversalAttentionValues, SavesNothingOfSizeNF) {
  for (bool causal : {false, true}) {
    // F = 256 features beside a width of 8: phi would be 32 times the query.
    const int64_t n = 4096, width = 8;
    const UniversalSpec spec{
        .batch = 1,
        .heads = 1,
        .n = n,
        .m = n,
        .value_width = width,
        .sizes = {.width = width, .projections = 16, .channels = 16},
        .causal = causal};
    Problem problem = problem_of(spec);
    const int64_t query = n * width * 4, rows = 2 * n * 4;
    EXPECT_LE(bytes_saved_for_backward(problem, at::kFloat),
              query + rows + 65536)
        << describe(spec);
    EXPECT_LT(query + rows + 65536, n * 256 * 4 / 8);  // the test can fail
  }
}

}  // namespace
}  // namespace luna::testing
