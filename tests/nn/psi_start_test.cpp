#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <luna/nn/feature_map.h>

#include <cmath>

// The starts of psi that are curves: their values, taken through the module.

namespace luna {
namespace {

constexpr int64_t kChannels = 8;

/// psi_c(u) for u in `points`: [points, L]. One projection that is u itself.
at::Tensor curves(const std::string& start, const at::Tensor& points,
                  bool shared = false, int64_t hidden = 64) {
  at::manual_seed(3);
  nn::FeatureMapOptions options;
  options.M = 1;
  options.L = kChannels;
  options.hidden = hidden;
  options.start = start;
  options.shared_channels = shared;
  nn::FeatureMap map(1, options);
  at::NoGradGuard no_grad;
  map->projection.fill_(1);
  return map->forward(points.to(at::kFloat).view({1, 1, -1, 1}))
      .view({-1, kChannels});
}

class PsiStart : public testing::TestWithParam<bool> {};

TEST_P(PsiStart, TentsStandSideBySide) {
  const auto u = at::linspace(-6, 6, 241, at::kDouble);
  const auto psi = curves("tents", u, GetParam()).to(at::kDouble);
  // At its top a tent is 1 and the others 0, up to the knots' distance from it
  // (a tent is 4/7 wide on either side, knots are 1/8 apart and move by 1/32).
  const auto tops = curves("tents", at::linspace(-2, 2, kChannels), GetParam());
  EXPECT_LT((tops - at::eye(kChannels)).abs().max().item<double>(), 0.3);
  // Together they are 1 everywhere: no u without features.
  EXPECT_LT((psi.sum(1) - 1).abs().max().item<double>(), 0.3);
  EXPECT_GE(psi.min().item<double>(), 0);
  // Level outside.
  EXPECT_LT((psi[0] - psi[20]).abs().max().item<double>(), 1e-5);
}

TEST_P(PsiStart, ExponentialsRiseAndFall) {
  const auto u = at::linspace(-1.2, 1.2, 61, at::kDouble);
  const auto psi = curves("exp", u, GetParam()).to(at::kDouble);
  for (int64_t c = 0; c < kChannels; ++c) {
    const double rate = (c % 2 == 0 ? -0.5 : 0.5) * double(c / 2 + 1);
    const auto expected = at::exp(u * rate).clamp_max(20);
    // Chords of exp over steps of at most 3/16: rate^2 h^2 / 8 above it.
    EXPECT_LT(
        ((psi.select(1, c) - expected) / expected).abs().max().item<double>(),
        0.02)
        << "channel " << c;
  }
}

INSTANTIATE_TEST_SUITE_P(Trunks, PsiStart, testing::Bool(),
                         [](const auto& info) {
                           return info.param ? "shared" : "own";
                         });

TEST(PsiStart, SmallestHiddenLayers) {
  for (const char* start : {"tents", "exp"}) {
    for (int64_t hidden : {1, 2, 3}) {
      const auto psi =
          curves(start, at::linspace(-3, 3, 13), /*shared=*/false, hidden);
      EXPECT_TRUE(psi.isfinite().all().item<bool>()) << start << hidden;
    }
  }
}

TEST(PsiStart, NormalizeMakesPhiBlindToLength) {
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

TEST(PsiStart, SpreadWidensTheProjections) {
  at::manual_seed(7);
  nn::FeatureMapOptions options;
  options.M = 256;
  options.spread = 3;
  nn::FeatureMap map(64, options);
  EXPECT_NEAR(map->projection.std().item<double>(), 3 / 8.0, 0.02);
}

}  // namespace
}  // namespace luna
