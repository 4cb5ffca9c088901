// Inputs at the ends of their range: no NaN and no Inf, forward or backward,
// unless the exact result is itself beyond the dtype (float16 sums).

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <utility>

#include "support/problems.h"

namespace luna::testing {
namespace {

using at::Tensor;

const std::set<std::string> kActivations{"x",     "query",    "key",
                                         "value", "pack_key", "packed_query"};

struct Extreme {
  std::string name;
  std::function<Tensor(const Tensor&)> apply;
  bool large = false;
};

std::vector<Extreme> extremes() {
  std::vector<Extreme> list;
  for (double scale : {1e-4, 1e-2, 1e2, 1e4}) {
    list.push_back({"times " + std::to_string(scale),
                    [scale](const Tensor& x) { return x * scale; },
                    /*large=*/scale > 1});
  }
  list.push_back({"zeros", [](const Tensor& x) { return x * 0; }});
  list.push_back({"all equal", [](const Tensor& x) { return x * 0 + 0.75; }});
  list.push_back(
      {"all 65504", [](const Tensor& x) { return x * 0 + 65504; }, true});
  list.push_back({"+-65504",
                  [](const Tensor& x) {
                    return at::where(x < 0, -65504.0, 65504.0).to(at::kDouble);
                  },
                  true});
  return list;
}

/// Calls the op on every extreme of its activations; differentiates its
/// output (not its states, whose sums overflow float16 by definition).
void expect_all_finite(const Case& c, const Problem& problem,
                       bool keep_signs = true, bool large = true) {
  const Function op = [&](const Arguments& a) -> Tensors {
    return {problem.op(a)[0]};
  };
  const Function reference = [&](const Arguments& a) -> Tensors {
    return {problem.reference(a)[0]};
  };
  for (const Extreme& extreme : extremes()) {
    if (extreme.large && !large) continue;
    SCOPED_TRACE(extreme.name);
    Arguments arguments = problem.arguments;
    for (auto& [name, tensor] : arguments) {
      if (!kActivations.count(name)) continue;
      tensor = extreme.apply(tensor);
      // Features that must not be negative.
      if (!keep_signs && name != "value") tensor = tensor.abs();
    }
    const Results exact =
        evaluate(reference, rounded(arguments, c.dtype), {c.dtype});
    const Results actual = evaluate(op, stored(arguments, c), {c.dtype});
    auto expect = [](const Tensor& got, const Tensor& want,
                     const std::string& what) {
      const Tensor fits = at::isfinite(want.to(got.scalar_type()));
      const Tensor lost = fits.logical_and(at::isfinite(got).logical_not());
      EXPECT_EQ(lost.sum().item<int64_t>(), 0)
          << what << ": " << got << "\nexact: " << want;
    };
    expect(actual.outputs[0].cpu(), exact.outputs[0], "output");
    for (const auto& [name, gradient] : exact.gradients) {
      expect(actual.gradients.at(name).cpu(), gradient, "gradient of " + name);
    }
  }
}

class Extremes : public OpTest {};
LUNA_ALL_CASES(Extremes);

TEST_P(Extremes, LinearAttention) {
  Random random(91);
  for (bool causal : {false, true}) {
    for (bool normalize : {false, true}) {
      // Plain sums of float16 numbers of that size are beyond float16.
      if (!normalize && GetParam().dtype == at::kHalf) continue;
      for (Weight weight : {Weight::kNone, Weight::kBool, Weight::kFloat}) {
        const LinearSpec spec{
            .weight = weight, .causal = causal, .normalize = normalize};
        SCOPED_TRACE(describe(spec));
        expect_all_finite(GetParam(), linear_problem(spec, random),
                          /*keep_signs=*/!normalize);
      }
    }
  }
}

TEST_P(Extremes, UniversalAttention) {
  Random random(92);
  for (bool causal : {false, true}) {
    for (Weight weight : {Weight::kNone, Weight::kBool, Weight::kFloat}) {
      const UniversalSpec spec{.weight = weight, .causal = causal};
      SCOPED_TRACE(describe(spec));
      expect_all_finite(GetParam(), universal_problem(spec, random));
    }
  }
}

TEST_P(Extremes, FeatureMap) {
  Random random(93);
  for (bool nonneg : {false, true}) {
    expect_all_finite(GetParam(),
                      feature_map_problem({.nonneg = nonneg}, random));
  }
}

TEST_P(Extremes, PackAttention) {
  Random random(94);
  for (Weight weight : {Weight::kNone, Weight::kBool}) {
    expect_all_finite(GetParam(), pack_problem({.weight = weight}, random));
    expect_all_finite(GetParam(),
                      pack_problem({.m = 200, .weight = weight}, random));
    expect_all_finite(GetParam(), pack_problem({.batch = 1,
                                                .l = 40,
                                                .m = 70,
                                                .width = 64,
                                                .value_width = 64,
                                                .weight = weight},
                                               random));
  }
  // What dropout keeps it scales up: float16's largest, beyond float16.
  expect_all_finite(GetParam(),
                    pack_problem({.m = 50, .dropout_p = 0.2}, random),
                    /*keep_signs=*/true,
                    /*large=*/GetParam().dtype != at::kHalf);
}

TEST_P(Extremes, UnpackAttention) {
  Random random(95);
  for (Weight weight : {Weight::kNone, Weight::kBool}) {
    expect_all_finite(GetParam(), unpack_problem({.weight = weight}, random));
    expect_all_finite(GetParam(),
                      unpack_problem({.l = 50, .weight = weight}, random));
    expect_all_finite(GetParam(), unpack_problem({.batch = 1,
                                                  .n = 70,
                                                  .l = 40,
                                                  .width = 64,
                                                  .value_width = 64,
                                                  .weight = weight},
                                                 random));
  }
  // What dropout keeps it scales up: float16's largest, beyond float16.
  expect_all_finite(GetParam(),
                    unpack_problem({.l = 50, .dropout_p = 0.2}, random),
                    /*keep_signs=*/true,
                    /*large=*/GetParam().dtype != at::kHalf);
}

TEST_P(Extremes, NestedCausalAttention) {
  Random random(96);
  for (const char* activation : {"softplus", "elu"}) {
    for (bool mask : {false, true}) {
      const NestedSpec spec{.n = 20, .mask = mask, .activation = activation};
      SCOPED_TRACE(describe(spec));
      // The output is a sum: of large float16 numbers, beyond float16.
      expect_all_finite(GetParam(), nested_problem(spec, random),
                        /*keep_signs=*/true,
                        /*large=*/GetParam().dtype != at::kHalf);
    }
  }
}

/// Powers of two with random signs: products and their sums are exact.
Tensor signed_powers(Random& random, at::IntArrayRef sizes, double size) {
  return at::where(random.coins(sizes), size, -size).to(at::kDouble);
}

// Equal keys share the weight, however large the scores are: each gets 1/m,
// also when the backward finds the probabilities again from what was saved.

TEST_P(Extremes, EqualKeysShareTheWeightInPack) {
  Random random(97);
  Problem problem = pack_problem({.m = 96}, random);
  problem.arguments["query"] =
      signed_powers(random, problem.arguments["query"].sizes(), 8192);
  problem.arguments["query"].select(3, 0).fill_(8192 * 3);
  problem.arguments["key"].fill_(8192);
  expect_matches(GetParam(), problem);
}

TEST_P(Extremes, EqualKeysShareTheWeightInUnpack) {
  Random random(98);
  Problem problem = unpack_problem({.l = 24}, random);
  problem.arguments["query"] =
      signed_powers(random, problem.arguments["query"].sizes(), 8192);
  problem.arguments["query"].select(3, 0).fill_(8192 * 3);
  problem.arguments["key"].fill_(8192);
  expect_matches(GetParam(), problem);
}

TEST_P(Extremes, EqualSlotsShareTheWeightInNestedCausal) {
  if (GetParam().dtype == at::kHalf) {
    GTEST_SKIP() << "sums beyond float16";
  }
  Random random(99);
  Problem problem = nested_problem({.n = 16, .l = 8}, random);
  problem.arguments["packed_query"].fill_(64);
  problem.arguments["pack_key"].fill_(64);
  problem.arguments["key"].fill_(4);
  problem.arguments["query"].fill_(512);
  // Of the other gradients rounding leaves nothing: they are differences
  // between equal slots, times these numbers.
  auto of_values = [&problem](const Function& f) -> Function {
    return [&problem, f](const Arguments& a) -> Tensors {
      Arguments all = problem.arguments;
      for (auto& [name, tensor] : all) {
        tensor = tensor.is_floating_point() ? tensor.to(a.at("value").options())
                                            : tensor.to(a.at("value").device());
      }
      all["value"] = a.at("value");
      return {f(all)[0]};
    };
  };
  expect_matches(GetParam(), {{{"value", problem.arguments["value"]}},
                              of_values(problem.op),
                              of_values(problem.reference)});
}

// Scores so far apart that one key takes all, in every row another one.

TEST_P(Extremes, OneKeyTakesAll) {
  Random random(100);
  Problem problem = pack_problem({.l = 4, .m = 40}, random);
  problem.arguments["query"] =
      8192 * at::eye(4, at::kDouble).expand({2, 2, 4, 4}).clone();
  Tensor key = at::zeros({2, 2, 40, 4}, at::kDouble);
  for (int64_t i = 0; i < 4; ++i) {
    key.select(2, 9 * i + 3).select(2, i).fill_(8192);
  }
  problem.arguments["key"] = key;
  expect_matches(GetParam(), problem);
}

}  // namespace
}  // namespace luna::testing
