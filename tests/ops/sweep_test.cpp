// Random small calls of every op against the references, gradients included.
// A failure prints the case and the seed that makes it.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "support/steps.h"

namespace luna::testing {
namespace {

constexpr int64_t kCasesPerOp = 260;

class Sweep : public ::testing::Test {
 protected:
  /// `check` draws a case from the given numbers and tests it.
  template <typename Check>
  static void run(uint64_t first_seed, int64_t cases, Check&& check) {
    for (int64_t i = 0; i < cases; ++i) {
      const uint64_t seed = first_seed + i;
      Random random(seed);
      const Case c = random.pick(cases_on(at::kCPU));
      SCOPED_TRACE("seed " + std::to_string(seed) + ", " + name_of(c));
      check(c, random);
      // One report is enough: the rest is often the same mistake.
      if (HasFailure()) return;
    }
  }

  static Weight weight(Random& random) {
    return random.pick<Weight>({Weight::kNone, Weight::kBool, Weight::kFloat,
                                Weight::kBoolPerHead, Weight::kFloatPerHead});
  }

  static Layout layout(Random& random) {
    return random.pick<Layout>(
        {Layout::kContiguous, Layout::kHeadsInside, Layout::kSliced});
  }

  /// Mostly a few tokens; at times across the border of a tile.
  static int64_t length(Random& random) {
    return random.coin(0.15) ? random.integer(30, 140) : random.integer(0, 9);
  }

  static std::vector<int64_t> lengths(Random& random, size_t sequences) {
    std::vector<int64_t> result;
    for (size_t i = 0; i < sequences; ++i) {
      result.push_back(random.coin(0.25) ? 0 : length(random));
    }
    return result;
  }

  /// What the linear and the universal op have in common.
  template <typename Spec>
  static Spec stateful(const Case& c, Random& random) {
    Spec spec;
    spec.eps = eps_for(c.dtype);
    spec.batch = random.integer(1, 3);
    spec.heads = random.integer(1, 3);
    spec.causal = random.coin();
    spec.n = length(random);
    spec.m = spec.causal ? spec.n : length(random);
    spec.value_width = random.integer(1, 9);
    spec.weight = weight(random);
    spec.state = random.coin();
    spec.layout = layout(random);
    if (random.coin(0.4)) {
      spec.lengths_q = lengths(random, random.integer(1, 4));
      spec.lengths_k =
          spec.causal ? spec.lengths_q : lengths(random, spec.lengths_q.size());
    }
    return spec;
  }

  static FeatureMapSizes sizes(Random& random, int64_t heads) {
    return {.width = random.integer(1, 9),
            .projections = random.integer(1, 4),
            .channels = random.integer(1, 5),
            .hidden = random.integer(1, 12),
            .heads = random.coin(0.3) ? heads : 0,
            .shared_trunk = random.coin(0.3)};
  }
};

TEST_F(Sweep, LinearAttention) {
  run(10000, kCasesPerOp, [](const Case& c, Random& random) {
    LinearSpec spec = stateful<LinearSpec>(c, random);
    spec.width = random.integer(1, 9);
    spec.normalize = random.coin(0.7);
    SCOPED_TRACE(describe(spec));
    expect_matches(c, linear_problem(spec, random));
  });
}

TEST_F(Sweep, UniversalAttention) {
  run(20000, kCasesPerOp, [](const Case& c, Random& random) {
    UniversalSpec spec = stateful<UniversalSpec>(c, random);
    spec.sizes = sizes(random, spec.heads);
    spec.nonneg = random.coin(0.7);
    spec.table = random.coin(0.3);
    SCOPED_TRACE(describe(spec));
    expect_matches(c, universal_problem(spec, random, c.dtype));
  });
}

TEST_F(Sweep, FeatureMap) {
  run(30000, kCasesPerOp, [](const Case& c, Random& random) {
    FeatureMapSpec spec;
    spec.leading = {random.integer(1, 3), random.integer(1, 3), length(random)};
    spec.sizes = sizes(random, spec.leading[1]);
    spec.nonneg = random.coin();
    spec.table = random.coin();
    spec.layout = layout(random);
    SCOPED_TRACE(describe(spec));
    expect_matches(c, feature_map_problem(spec, random, c.dtype));
  });
}

TEST_F(Sweep, PackAttention) {
  run(40000, kCasesPerOp, [](const Case& c, Random& random) {
    PackSpec spec;
    spec.batch = random.integer(1, 3);
    spec.heads = random.integer(1, 3);
    spec.l = random.integer(1, 20);
    spec.m = length(random);
    spec.width = random.integer(1, 9);
    spec.value_width = random.integer(1, 9);
    spec.weight = weight(random);
    spec.shared_query = random.coin();
    if (random.coin()) spec.scale = 0.3;
    spec.layout = layout(random);
    if (random.coin(0.4)) {
      spec.lengths_k = lengths(random, random.integer(1, 4));
    }
    SCOPED_TRACE(describe(spec));
    expect_matches(c, pack_problem(spec, random));
  });
}

TEST_F(Sweep, UnpackAttention) {
  run(50000, kCasesPerOp, [](const Case& c, Random& random) {
    UnpackSpec spec;
    spec.batch = random.integer(1, 3);
    spec.heads = random.integer(1, 3);
    spec.l = random.integer(1, 20);
    spec.n = length(random);
    spec.width = random.integer(1, 9);
    spec.value_width = random.integer(1, 9);
    spec.weight = weight(random);
    if (random.coin()) spec.scale = 0.3;
    spec.layout = layout(random);
    if (random.coin(0.4)) {
      spec.lengths_q = lengths(random, random.integer(1, 4));
    }
    SCOPED_TRACE(describe(spec));
    expect_matches(c, unpack_problem(spec, random));
  });
}

TEST_F(Sweep, NestedCausalAttention) {
  run(60000, kCasesPerOp, [](const Case& c, Random& random) {
    NestedSpec spec;
    spec.batch = random.integer(1, 3);
    spec.heads = random.integer(1, 3);
    spec.l = random.integer(1, 12);
    spec.n = length(random);
    spec.width = random.integer(1, 9);
    spec.value_width = random.integer(1, 9);
    spec.mask = random.coin();
    spec.shared_query = random.coin();
    spec.state = random.coin();
    if (random.coin()) spec.activation = "elu";
    if (random.coin()) spec.scale = 0.3;
    spec.layout = layout(random);
    if (random.coin(0.4)) {
      spec.lengths = lengths(random, random.integer(1, 4));
    }
    SCOPED_TRACE(describe(spec));
    expect_matches(c, nested_problem(spec, random));
  });
}

TEST_F(Sweep, Steps) {
  run(70000, kCasesPerOp, [](const Case& c, Random& random) {
    if (random.coin()) {
      LinearSpec spec{.batch = random.integer(1, 3),
                      .heads = random.integer(1, 3),
                      .n = 1,
                      .m = 1,
                      .width = random.integer(1, 20),
                      .value_width = random.integer(1, 20),
                      .weight = weight(random),
                      .normalize = random.coin(),
                      .state = true,
                      .layout = layout(random)};
      SCOPED_TRACE("step: " + describe(spec));
      expect_outputs_match(c, linear_step_problem(spec, random));
    } else if (random.coin()) {
      UniversalSpec spec{.batch = random.integer(1, 3),
                         .heads = random.integer(1, 3),
                         .n = 1,
                         .m = 1,
                         .value_width = random.integer(1, 20)};
      spec.sizes = sizes(random, spec.heads);
      spec.weight = weight(random);
      spec.nonneg = random.coin();
      spec.state = true;
      spec.table = random.coin();
      spec.layout = layout(random);
      SCOPED_TRACE("step: " + describe(spec));
      expect_outputs_match(c, universal_step_problem(spec, random, c.dtype));
    } else {
      NestedSpec spec{.batch = random.integer(1, 3),
                      .heads = random.integer(1, 3),
                      .n = 1,
                      .l = random.integer(1, 20),
                      .width = random.integer(1, 20),
                      .value_width = random.integer(1, 20),
                      .mask = random.coin(),
                      .shared_query = random.coin(),
                      .state = true,
                      .activation = random.coin() ? "elu" : "softplus",
                      .layout = layout(random)};
      SCOPED_TRACE("step: " + describe(spec));
      expect_outputs_match(c, nested_step_problem(spec, random));
    }
  });
}

}  // namespace
}  // namespace luna::testing
