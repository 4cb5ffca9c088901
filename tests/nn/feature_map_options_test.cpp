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

TEST(FeatureMapOptions, DenominatorsCountAsNoLessThanEps) {
  at::manual_seed(11);
  nn::FeatureMapOptions options;
  options.eps = 1.5;
  nn::FeatureMap map(16, options);
  map->to(at::kDouble);
  at::NoGradGuard no_grad;
  const auto x = at::randn({3, 2, 2, 20, 16}, at::kDouble);
  const auto q = x[0], k = x[1], v = x[2];
  const auto phi_q = map->forward(q), phi_k = map->forward(k);
  const auto scores = at::matmul(phi_q, phi_k.mT()).tril();
  const auto sums = scores.sum(-1, true);
  const auto small = sums < options.eps;
  ASSERT_TRUE(small.any().item<bool>());
  ASSERT_FALSE(small.all().item<bool>());
  const auto want = at::matmul(scores, v) / sums.clamp_min(options.eps);

  const auto out = std::get<0>(map->attend(q, k, v, {.causal = true}));
  EXPECT_TRUE(at::allclose(out, want, 1e-10, 1e-12));
  auto state = at::zeros({2, 2, options.M * options.L, 17}, at::kDouble);
  for (int64_t t = 0; t < 20; ++t) {
    const auto token = [&](const at::Tensor& x) { return x.select(2, t); };
    EXPECT_TRUE(at::allclose(map->step(token(q), token(k), token(v), state),
                             token(want), 1e-10, 1e-12));
  }
  options.eps = 0;
  EXPECT_THROW(nn::FeatureMap(16, options), c10::Error);
}

}  // namespace
}  // namespace luna
