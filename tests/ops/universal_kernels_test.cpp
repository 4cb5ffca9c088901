// universal_attention at the shapes that a GPU has kernels of their own for,
// and at those beside them: tiles, runs of tiles, heads taken whole, gradients
// of any size.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "ops/universal_problems.h"
#include "support/properties.h"

namespace luna::testing {
namespace {

using at::Tensor;

class UniversalKernels : public UniversalOpTest {};
LUNA_ALL_CASES(UniversalKernels);

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

TEST_P(UniversalKernels, ShapesOfTheFusedKernels) {
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

TEST_P(UniversalKernels, ShapesBesideTheFusedKernels) {
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

TEST_P(UniversalKernels, ShapesOfTheFusedCausalKernels) {
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
TEST_P(UniversalKernels, LongRunsOfTheFusedCausalKernels) {
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

TEST_P(UniversalKernels, ShortSequences) {
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
TEST_P(UniversalKernels, ManyShortSequences) {
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

TEST_P(UniversalKernels, LongRunsBesideTheFusedKernels) {
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

TEST_P(UniversalKernels, GradientsOfAnySize) {
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
TEST_P(UniversalKernels, GradientsThatGrow) {
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

}  // namespace
}  // namespace luna::testing
