#include "luna/bench/attention_bench.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include "luna/bench/contenders.h"
#include "luna/bench/plain_formula.h"
#include "luna/nn/attention_registry.h"
#include "luna/nn/feature_map.h"
#include "luna/ops.h"

namespace luna::bench {
namespace {

Settings tiny() {
  Settings settings;
  settings.tokens = 64;
  settings.heads = 2;
  settings.width = 8;
  settings.lengths = {16, 32};
  settings.packed_length = 4;
  settings.repeat = 1;
  settings.budget = 1000;  // a busy machine must not leave anything out
  settings.plain = "all";
  return settings;
}

TEST(AttentionBench, MeasuresEveryMechanismAndPeer) {
  const Results results = bench_attention(tiny());
  std::vector<std::string> names = {std::string(kPlainFormula),
                                    std::string(kSdpaPair)};
  for (const auto& info : nn::attentions()) names.push_back(info.name);
  for (const std::string& name : names) {
    for (const std::int64_t length : {16, 32}) {
      for (const Mode mode : {Mode::kForward, Mode::kForwardBackward}) {
        const Measurement* m = results.find(name, mode, length);
        ASSERT_NE(m, nullptr) << name << " " << length;
        EXPECT_GT(m->time.median, 0) << name;
        EXPECT_EQ(m->batch, 64 / length);
        // q, k, v and the output at the very least.
        EXPECT_GE(m->peak, 4 * 64 * 2 * 8 * 4) << name;
      }
    }
  }
  EXPECT_TRUE(results.complete);
  EXPECT_TRUE(results.skipped.empty());
}

TEST(AttentionBench, SaysWhatItLeftOut) {
  Settings settings = tiny();
  settings.causal = true;
  settings.modes = {Mode::kForward};
  const Results results = bench_attention(settings);
  EXPECT_EQ(results.skipped.size(), 4u);  // plain and sdpa-pair, two lengths
  for (const Skip& skip : results.skipped) {
    EXPECT_EQ(skip.reason, "it has no causal form");
  }
  EXPECT_NE(results.find("nested", Mode::kForward, 16), nullptr);
}

TEST(AttentionBench, StopsAndKeepsWhatIsDone) {
  Hooks hooks;
  bool stop = false;
  hooks.stop = [&] { return stop; };
  hooks.progress = [&](const Progress& p) {
    stop = p.attention == "universal" && p.length == 16;
  };
  const Results results = bench_attention(tiny(), hooks);
  EXPECT_FALSE(results.complete);
  EXPECT_NE(results.find("universal", Mode::kForward, 16), nullptr);
  EXPECT_EQ(results.find("universal", Mode::kForward, 32), nullptr);
}

TEST(AttentionBench, GoesThroughAllLengthsInEveryRound) {
  Settings settings = tiny();
  settings.attentions = {"linear"};
  settings.modes = {Mode::kForward};
  settings.repeat = 2;
  std::vector<std::int64_t> lengths;
  Hooks hooks;
  hooks.progress = [&](const Progress& p) {
    if (p.attention == "linear") lengths.push_back(p.length);
    EXPECT_GT(p.share, 0);
    EXPECT_LE(p.share, 1);
  };
  bench_attention(settings, hooks);
  EXPECT_EQ(lengths, (std::vector<std::int64_t>{16, 32, 16, 32, 16, 32}));
}

TEST(AttentionBench, RejectsSettingsThatMakeNoSense) {
  const auto rejects = [](auto change) {
    Settings settings = tiny();
    change(settings);
    EXPECT_THROW(check_settings(settings), c10::ValueError);
  };
  check_settings(tiny());
  rejects([](Settings& s) { s.lengths = {24}; });
  rejects([](Settings& s) { s.lengths = {128}; });
  rejects([](Settings& s) { s.lengths = {32, 16}; });
  rejects([](Settings& s) { s.heads = 0; });
  rejects([](Settings& s) { s.attentions = {"univresal"}; });
  rejects([](Settings& s) { s.dtype = "float8"; });
  rejects([](Settings& s) { s.plain = "sometimes"; });
  rejects([](Settings& s) { s.budget = 0; });
}

TEST(Contenders, PlainFormulaNeedsHalfTheMemoryAtMost) {
  const Work work{.batch = 16, .heads = 8, .length = 512, .width = 64};
  const std::string name(kPlainFormula);
  // 16 * 512 * 8 tokens x 8 projections x 512 hidden units x 4 bytes
  // = 1.07 GB, several times over.
  EXPECT_NE(obstacle(name, work, Mode::kForward, std::int64_t{2} << 30), "");
  EXPECT_EQ(obstacle(name, work, Mode::kForward, std::int64_t{32} << 30), "");
}

// Ratios mean nothing unless both sides compute the same.
TEST(Contenders, PlainFormulaIsUniversalAttention) {
  at::manual_seed(1);
  nn::FeatureMap map(8);
  const auto draw = [] { return at::randn({2, 2, 20, 8}); };
  const at::Tensor q = draw(), k = draw(), v = draw();
  const at::NoGradGuard no_gradients;
  const at::Tensor fused =
      std::get<0>(ops::universal_attention(q, k, v, map->map_parameters()));
  const at::Tensor plain = plain_formula(q, k, v, map->map_parameters());
  EXPECT_LT((fused - plain).abs().max().item<double>(), 1e-4);
}

TEST(Contenders, TwoSdpaCallsAreNestedAttention) {
  const Work work{
      .batch = 2, .heads = 2, .length = 20, .width = 8, .packed_length = 4};
  const Inputs inputs = make_inputs(work);
  const auto output = [&](const std::string& name) {
    at::manual_seed(3);  // the same memory for both
    return make_contender(name, work, inputs).attend();
  };
  const at::Tensor ours = output("nested");
  const at::Tensor theirs = output(std::string(kSdpaPair));
  EXPECT_LT((ours - theirs).abs().max().item<double>(), 1e-5);
}

TEST(Contenders, BackwardReachesEveryLeaf) {
  const Work work{
      .batch = 2, .heads = 2, .length = 16, .width = 8, .packed_length = 4};
  const Inputs inputs = make_inputs(work);
  for (const char* name : {"softmax", "universal", "nested", "linear", "rff",
                           "plain", "sdpa-pair"}) {
    const Contender contender = make_contender(name, work, inputs);
    const Contestant run =
        contestant(contender, Mode::kForwardBackward, inputs.out_gradient);
    run.run();
    for (const at::Tensor& leaf : contender.leaves) {
      EXPECT_TRUE(leaf.grad().defined()) << name;
    }
    run.reset();
    for (const at::Tensor& leaf : contender.leaves) {
      EXPECT_FALSE(leaf.grad().defined()) << name;
    }
  }
}

}  // namespace
}  // namespace luna::bench
