#include "luna/report/learned_psi.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <luna/io/safetensors.h>

#include <cmath>

#include "report/run_folders.h"

namespace luna::report::testing {
namespace {

/// Two channels of two units: relu(u) and a constant below zero.
io::NamedTensors layer(const std::string& name, double scale) {
  const std::string prefix = name + ".feature_map.";
  return {
      {prefix + "projection", at::ones({8, 4})},
      {prefix + "hidden_weight", at::tensor({1.f, 1.f, 1.f, 1.f}).view({2, 2})},
      // Knots at 0, 10 (out of range), 0, 0.
      {prefix + "hidden_bias", at::tensor({0.f, -10.f, 0.f, 0.f}).view({2, 2})},
      {prefix + "output_weight",
       at::tensor({float(scale), 1.f, 0.f, 0.f}).view({2, 2})},
      {prefix + "output_bias", at::tensor({0.f, -1.f})}};
}

void append(io::NamedTensors& all, const io::NamedTensors& more) {
  all.insert(all.end(), more.begin(), more.end());
}

TEST(LearnedPsi, IsTheFunctionOfTheWeights) {
  const TemporaryFolder folder;
  io::NamedTensors now = layer("layers.0.attention", 3);
  append(now, layer("layers.10.attention", 1));
  append(now, layer("layers.2.attention", 1));
  io::write_safetensors(folder / "now", now);
  io::write_safetensors(folder / "start", layer("layers.0.attention", 2));
  const auto layers = learned_psi(folder / "now", folder / "start", true);
  ASSERT_EQ(layers.size(), 3u);
  EXPECT_EQ(layers[0].layer, "layers.0.attention");
  EXPECT_EQ(layers[1].layer, "layers.2.attention");
  EXPECT_EQ(layers[2].layer, "layers.10.attention");

  const LearnedPsi& psi = layers[0];
  ASSERT_EQ(psi.now.size(), 2u);
  for (std::size_t i = 0; i < psi.u.size(); ++i) {
    EXPECT_NEAR(psi.now[0][i], 3 * std::max(psi.u[i], 0.0), 1e-6);
    EXPECT_NEAR(psi.start[0][i], 2 * std::max(psi.u[i], 0.0), 1e-6);
    EXPECT_EQ(psi.now[1][i], 0);
  }
  EXPECT_EQ(psi.live, (std::vector<bool>{true, false}));
  EXPECT_NEAR(psi.live_share, 0.25, 0.005);  // u > 0 of one of two
  EXPECT_DOUBLE_EQ(psi.knots_inside, 0.75);
  EXPECT_NEAR(psi.change, 0.5, 1e-6);  // |3 - 2| / |2|
  EXPECT_TRUE(layers[1].start.empty());
  EXPECT_LT(layers[1].change, 0);
}

TEST(LearnedPsi, IsMeasuredWhereTheRunFoundU) {
  const TemporaryFolder folder;
  io::NamedTensors now = layer("layers.0.attention", 1);
  append(now, layer("layers.1.attention", 1));
  io::write_safetensors(folder / "now", now);
  train::FeatureUse use{.map = "layers.1.attention.feature_map",
                        .query = {.live = 0.125, .silent = 0.5}};
  for (int i = 0; i < train::kQuantiles; ++i) use.u.push_back(9 + 0.1 * i);
  const auto layers = learned_psi(folder / "now", "", true, {use});
  ASSERT_EQ(layers.size(), 2u);
  EXPECT_FALSE(layers[0].use);
  EXPECT_NEAR(layers[0].u.back(), 2.5792, 1e-3);  // normal, 100.5 of 101
  const LearnedPsi& psi = layers[1];
  ASSERT_TRUE(psi.use);
  EXPECT_EQ(psi.use->query.live, 0.125);
  EXPECT_EQ(psi.u, use.u);
  // Of the knots at 0, 10, 0 and 0 one lies between 9 and 19.
  EXPECT_DOUBLE_EQ(psi.knots_inside, 0.25);
  EXPECT_DOUBLE_EQ(psi.live_share, 0.5);  // all of the first channel
  EXPECT_NEAR(psi.now[0].front(), 9, 1e-6);
  EXPECT_NEAR(psi.now[0].back(), 19 + 9, 1e-6);  // with the second unit
}

TEST(LearnedPsi, MayBeNegativeWhereTheModelLetsIt) {
  const TemporaryFolder folder;
  io::write_safetensors(folder / "now", layer("layers.0.attention", 1));
  const auto layers = learned_psi(folder / "now", "", false);
  EXPECT_EQ(layers[0].now[1][0], -1);
  EXPECT_TRUE(layers[0].live[1]);
}

TEST(LearnedPsi, NoneWithoutFeatureMaps) {
  const TemporaryFolder folder;
  io::write_safetensors(folder / "now", {{"head.weight", at::ones({2})}});
  EXPECT_TRUE(learned_psi(folder / "now", "", true).empty());
}

}  // namespace
}  // namespace luna::report::testing
