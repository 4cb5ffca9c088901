#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <luna/nn/feature_map.h>

namespace luna {
namespace {

TEST(FeatureMapOptions, NormalizeMakesPhiBlindToLength) {
  at::manual_seed(5);
  nn::FeatureMapOptions options;
  options.normalize = true;
  nn::FeatureMap map(16, options);
  at::NoGradGuard no_grad;
  const auto x = at::randn({2, 3, 7, 16});
  EXPECT_TRUE(at::allclose(map->forward(x), map->forward(100 * x), 1e-4, 1e-5));
  options.normalize = false;
  nn::FeatureMap plain(16, options);
  for (auto& entry : plain->named_parameters()) {
    entry.value().copy_(map->named_parameters()[entry.key()]);
  }
  const auto scaled = x / x.square().mean(-1, true).sqrt();
  EXPECT_TRUE(
      at::allclose(map->forward(x), plain->forward(scaled), 1e-4, 1e-5));
}

TEST(FeatureMapOptions, SpreadWidensTheProjections) {
  at::manual_seed(7);
  nn::FeatureMapOptions options;
  options.M = 256;
  options.spread = 3;
  nn::FeatureMap map(64, options);
  EXPECT_NEAR(map->projection.std().item<double>(), 3 / 8.0, 0.02);
}

TEST(FeatureMapOptions, LiftStartsEveryChannelAlive) {
  nn::FeatureMapOptions options;
  options.L = 64;
  at::manual_seed(7);
  EXPECT_GT(nn::FeatureMap(64, options)->dead_features(1000), 0.02);
  options.lift = 1;
  nn::FeatureMap lifted(64, options);
  EXPECT_EQ(lifted->dead_features(1000), 0);
  // U(1 - 1/8, 1 + 1/8)
  EXPECT_NEAR(lifted->output_bias.mean().item<double>(), 1, 0.04);
  EXPECT_LE((lifted->output_bias - 1).abs().max().item<double>(), 0.125);
}

}  // namespace
}  // namespace luna
