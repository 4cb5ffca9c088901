#include <luna/ops/universal_attention.h>
#include <luna/ops/universal_table.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "support/properties.h"
#include "support/reference.h"

namespace luna::testing {
namespace {

using at::Tensor;

const PackedArguments kPacked{
    {"query"}, {"key", "value", "key_weight"}, {"state"}, {2, 0}};

Problem problem_of(const UniversalSpec& spec,
                   at::ScalarType dtype = at::kDouble) {
  Random random(21);
  return universal_problem(spec, random, dtype);
}

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

class UniversalAttention : public OpTest {
 protected:
  static Problem problem(UniversalSpec spec) {
    spec.eps = eps_for(GetParam().dtype);
    return problem_of(spec, GetParam().dtype);
  }
};
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

// 8 or 16 projections of 8 channels: what GPUs have kernels of their own for,
// tokens in tiles of 64.
std::vector<UniversalSpec> fused_specs(int64_t width, int64_t projections) {
  const UniversalSpec base{.batch = 1,
                           .value_width = width,
                           .sizes = {.width = width,
                                     .projections = projections,
                                     .channels = 8,
                                     .hidden = 8}};
  std::vector<UniversalSpec> specs;
  for (auto [n, m] : {std::pair{17, 1}, {1, 64}, {65, 16}, {100, 140}}) {
    specs.push_back(base);
    specs.back().n = n;
    specs.back().m = m;
  }
  for (Weight weight : {Weight::kBool, Weight::kFloatPerHead}) {
    specs.push_back(base);
    specs.back().n = specs.back().m = 40;
    specs.back().weight = weight;
    specs.back().layout = Layout::kHeadsInside;
  }
  specs.push_back(base);
  specs.back().lengths_q = {1, 0, 80, 23};
  specs.back().lengths_k = {5, 3, 73, 0};
  specs.back().state = true;
  specs.push_back(base);
  specs.back().n = specs.back().m = 30;
  specs.back().nonneg = false;
  specs.push_back(base);
  specs.back().batch = 2;
  specs.back().n = specs.back().m = 70;
  specs.back().sizes.heads = specs.back().heads;
  specs.back().layout = Layout::kHeadsInside;
  return specs;
}

TEST_P(UniversalAttention, ShapesOfTheFusedKernels) {
  for (auto [width, projections] :
       {std::pair{32, 8}, {64, 8}, {128, 8}, {32, 16}, {64, 16}}) {
    // The CPU's kernels are one for all of these.
    const bool usual = width == 64 && projections == 8;
    if (GetParam().device == at::kCPU && !usual) continue;
    for (const UniversalSpec& spec : fused_specs(width, projections)) {
      SCOPED_TRACE(describe(spec));
      expect_matches(GetParam(), problem(spec));
      expect_same_bits_twice(GetParam(), problem(spec));
    }
  }
}

// What the fused kernels leave over: many projections, as converted models
// have them, many channels, wide heads, features of any number.
std::vector<UniversalSpec> specs_of_other_shapes() {
  const UniversalSpec converted{.batch = 1,
                                .n = 21,
                                .m = 18,
                                .value_width = 32,
                                .sizes = {.width = 32,
                                          .projections = 128,
                                          .channels = 1,
                                          .hidden = 4,
                                          .heads = 2},
                                .layout = Layout::kHeadsInside};
  std::vector<UniversalSpec> specs(5, converted);
  specs[1].weight = Weight::kFloatPerHead;
  specs[1].state = true;
  specs[2].weight = Weight::kBool;
  specs[2].nonneg = false;
  specs[3].m = 21;
  specs[3].causal = true;
  specs[4].lengths_q = {1, 0, 19};
  specs[4].lengths_k = {5, 3, 17};
  specs[4].state = true;
  for (const FeatureMapSizes& sizes :
       {FeatureMapSizes{
            .width = 64, .projections = 4, .channels = 16, .hidden = 4},
        {.width = 128, .projections = 16, .channels = 8, .hidden = 4},
        {.width = 24, .projections = 20, .channels = 3, .hidden = 5},
        {.width = 96, .projections = 40, .channels = 2, .hidden = 3}}) {
    specs.push_back({.batch = 2,
                     .n = 10,
                     .m = 17,
                     .value_width = sizes.width,
                     .sizes = sizes,
                     .weight = Weight::kFloat});
  }
  return specs;
}

TEST_P(UniversalAttention, ShapesBesideTheFusedKernels) {
  for (const UniversalSpec& spec : specs_of_other_shapes()) {
    SCOPED_TRACE(describe(spec));
    expect_matches(GetParam(), problem(spec));
    expect_same_bits_twice(GetParam(), problem(spec));
  }
}

/// What the fused causal kernels take in bfloat16.
const UniversalSpec kFusedCausal{
    .batch = 1,
    .value_width = 64,
    .sizes = {.width = 64, .projections = 8, .channels = 8, .hidden = 8},
    .causal = true};

TEST_P(UniversalAttention, ShapesOfTheFusedCausalKernels) {
  std::vector<UniversalSpec> specs;
  const auto add = [&](int64_t n) -> UniversalSpec& {
    specs.push_back(kFusedCausal);
    specs.back().n = specs.back().m = n;
    return specs.back();
  };
  for (int64_t n : {0, 1, 63, 64, 65, 130}) add(n);
  for (Weight weight : {Weight::kBool, Weight::kFloatPerHead}) {
    UniversalSpec& spec = add(70);
    spec.weight = weight;
    spec.layout = Layout::kHeadsInside;
  }
  UniversalSpec& packed = add(0);
  packed.lengths_q = packed.lengths_k = {1, 0, 80, 23};
  packed.state = true;
  packed.weight = Weight::kFloat;
  UniversalSpec& with_state = add(100);
  with_state.batch = 2;
  with_state.state = true;
  add(30).nonneg = false;
  for (const UniversalSpec& spec : specs) {
    SCOPED_TRACE(describe(spec));
    expect_matches(GetParam(), problem(spec));
    expect_same_bits_twice(GetParam(), problem(spec));
  }
}

// Too much for the reference, so the op itself in float64 is one.
void expect_near_double(const Case& c, const Problem& p) {
  const Case wide{c.device, at::kDouble, 0, 0};
  const Arguments exact = rounded(p.arguments, c.dtype);
  const Results want = evaluate(p.op, stored(exact, wide), {c.dtype});
  const Results got = evaluate(p.op, stored(exact, c), {c.dtype});
  for (size_t i = 0; i < want.outputs.size(); ++i) {
    expect_close(got.outputs[i], want.outputs[i], 3e-3, "output");
  }
  for (const auto& [name, gradient] : want.gradients) {
    // Scaling all features changes nothing, so these nearly cancel.
    const bool of_psi =
        name.rfind("hidden", 0) == 0 || name.rfind("output", 0) == 0;
    expect_close(got.gradients.at(name), gradient, of_psi ? 5e-2 : 1e-2, name);
  }
}
void expect_near_double(const Case& c, const UniversalSpec& spec) {
  expect_near_double(c, problem_of(spec));  // some number is near some knot
}

// On a GPU each warpgroup has several tiles, and states that begin and end
// among them.
TEST_P(UniversalAttention, LongRunsOfTheFusedCausalKernels) {
  if (GetParam().device == at::kCPU) GTEST_SKIP() << "runs are the GPU's";
  UniversalSpec spec = kFusedCausal;
  spec.heads = 8;
  spec.n = spec.m = 10000;
  UniversalSpec packed = spec;
  packed.lengths_q = packed.lengths_k = {5000, 1, 0, 200, 63, 64, 4672};
  packed.state = true;
  packed.weight = Weight::kFloat;
  UniversalSpec odd = spec;
  odd.n = odd.m = 1000;
  UniversalSpec masked = spec;
  masked.batch = 40;
  masked.n = masked.m = 250;
  masked.weight = Weight::kBool;
  for (const UniversalSpec& each : {spec, odd, packed, masked}) {
    SCOPED_TRACE(describe(each));
    expect_near_double(GetParam(), each);
  }
}

// Sequences of which a GPU's warpgroups take heads whole: up to 512 tokens in
// bfloat16, and at most 4 for each (sequence, head).
UniversalSpec short_spec(int64_t n, int64_t m) {
  return {.batch = 1,
          .heads = std::max<int64_t>((std::max(n, m) + 3) / 4, 1),
          .n = n,
          .m = m,
          .value_width = 64,
          .sizes = {.width = 64, .projections = 8, .channels = 8, .hidden = 4}};
}

TEST_P(UniversalAttention, ShortSequences) {
  if (GetParam().device == at::kCPU || GetParam().dtype != at::kBFloat16) {
    GTEST_SKIP() << "these kernels are the GPU's, for bfloat16";
  }
  std::vector<UniversalSpec> specs;
  const auto add = [&](int64_t n, int64_t m) -> UniversalSpec& {
    specs.push_back(short_spec(n, m));
    return specs.back();
  };
  for (int64_t n : {0, 1, 63, 64, 65, 128, 200}) add(n, n);
  for (auto [n, m] : {std::pair{20, 1}, {1, 200}, {65, 190}, {150, 64}}) {
    add(n, m);
  }
  for (Weight weight : {Weight::kBool, Weight::kFloat, Weight::kFloatPerHead}) {
    UniversalSpec& spec = add(100, 130);
    spec.weight = weight;
    spec.layout = Layout::kHeadsInside;
  }
  UniversalSpec& own_projections = add(130, 70);
  own_projections.batch = 11;
  own_projections.heads = own_projections.sizes.heads = 3;
  own_projections.weight = Weight::kFloatPerHead;
  add(30, 30).nonneg = false;
  // What the other kernels have: too few heads, packs, states.
  --add(128, 128).heads;
  UniversalSpec& packed = add(0, 0);
  packed.heads = 50;
  packed.lengths_q = {1, 0, 130, 64};
  packed.lengths_k = {65, 3, 200, 0};
  add(70, 70).state = true;
  for (auto [n, m] : {std::pair{256, 256},
                      {511, 511},
                      {512, 512},
                      {513, 513},
                      {512, 40},
                      {20, 512}}) {
    add(n, m);
  }
  for (UniversalSpec spec : specs) {
    SCOPED_TRACE(describe(spec));
    // Of many numbers some is always near a knot.
    const int64_t keys = std::accumulate(
        spec.lengths_k.begin(), spec.lengths_k.end(), std::max(spec.n, spec.m));
    if (spec.batch * spec.heads * keys < 2000) {
      expect_matches(GetParam(), problem(spec));
    } else {
      spec.sizes.hidden = 64;
      expect_near_double(GetParam(), spec);
    }
    expect_same_bits_twice(GetParam(), problem_of(spec));
  }
}

// On a GPU each warpgroup has several heads, not all as many.
TEST_P(UniversalAttention, ManyShortSequences) {
  if (GetParam().device == at::kCPU) GTEST_SKIP() << "runs are the GPU's";
  UniversalSpec spec = short_spec(128, 128);
  spec.batch = 150;
  spec.heads = 8;
  spec.sizes.hidden = 64;
  UniversalSpec uneven = spec;
  uneven.n = 70;
  uneven.m = 193;
  uneven.weight = Weight::kFloatPerHead;
  UniversalSpec own_projections = spec;
  own_projections.sizes.heads = 8;
  own_projections.layout = Layout::kHeadsInside;
  for (const UniversalSpec& each : {spec, uneven, own_projections}) {
    SCOPED_TRACE(describe(each));
    expect_near_double(GetParam(), each);
  }
}

TEST_P(UniversalAttention, LongRunsBesideTheFusedKernels) {
  if (GetParam().device == at::kCPU) GTEST_SKIP() << "runs are the GPU's";
  UniversalSpec converted{.batch = 6,
                          .heads = 12,
                          .n = 128,
                          .m = 128,
                          .value_width = 32,
                          .sizes = {.width = 32,
                                    .projections = 128,
                                    .channels = 1,
                                    .hidden = 64,
                                    .heads = 12},
                          .layout = Layout::kHeadsInside};
  UniversalSpec few = kFusedCausal;
  few.causal = false;
  few.n = few.m = 5000;
  few.sizes.channels = 16;
  few.sizes.hidden = 64;
  UniversalSpec causal = few;
  causal.n = causal.m = 700;
  causal.causal = true;
  for (const UniversalSpec& each : {converted, few, causal}) {
    SCOPED_TRACE(describe(each));
    expect_near_double(GetParam(), each);
  }
}

TEST_P(UniversalAttention, GradientsOfAnySize) {
  if (GetParam().dtype == at::kHalf) return;  // too large for it
  for (bool causal : {false, true}) {
    UniversalSpec spec = kFusedCausal;
    spec.n = spec.m = 150;
    spec.causal = causal;
    const Problem p = problem(spec);
    const Arguments arguments = stored(p.arguments, GetParam());
    const auto scaled_by = [&](double factor) {
      return evaluate(
          [&](const Arguments& a) { return Tensors{p.op(a)[0] * factor}; },
          arguments);
    };
    const Results plain = scaled_by(1);
    for (double factor : {0x1p-20, 0x1p20}) {
      for (const auto& [name, gradient] : scaled_by(factor).gradients) {
        expect_close(gradient / factor, plain.gradients.at(name), 1e-6, name);
      }
    }
  }
}

// On a GPU the warps of a block agree on the size of gradients: here it grows
// by 2^20 midway, and in one warp of four.
TEST_P(UniversalAttention, GradientsThatGrow) {
  if (GetParam().dtype == at::kHalf) return;  // too large for it
  UniversalSpec few = short_spec(700, 700), causal = few;
  few.heads = causal.heads = 8;
  causal.causal = true;
  for (const UniversalSpec& spec : {short_spec(200, 200), few, causal}) {
    SCOPED_TRACE(describe(spec));
    Problem p = problem_of(spec);
    Tensor factors = at::full({spec.n, 1}, 0x1p-20);
    for (int64_t i = spec.n / 2; i < spec.n; ++i) {
      if (i / 16 % 4 == 2) factors[i] = 1;
    }
    p.op = [op = p.op, factors](const Arguments& a) -> Tensors {
      const Tensor output = op(a)[0];
      return {output * factors.to(output.options())};
    };
    expect_near_double(GetParam(), p);
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
