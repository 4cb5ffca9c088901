#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <luna/nn/feature_map.h>

#include <algorithm>
#include <vector>

#include "support/errors.h"

namespace luna::nn {
namespace {

FeatureMapOptions ramps(int64_t M, int64_t L) {
  FeatureMapOptions options;
  options.M = M;
  options.L = L;
  options.start = "ramps";
  return options;
}

/// psi_c(u) for u [n], of one projection by 1: [n,L].
at::Tensor psi(const FeatureMapOptions& options, const at::Tensor& u) {
  const at::NoGradGuard no_grad;
  FeatureMap map(1, options);
  map->projection.fill_(1);
  return map->forward(u.view({1, 1, -1, 1}))[0][0];
}

TEST(RampsStart, EachChannelRisesBehindItsThreshold) {
  const std::vector<double> thresholds{0, 0, 0.5, 0.5, 1, 1, 1.5, 1.5};
  const at::Tensor u = at::linspace(-8, 8, 321);
  for (const bool shared : {false, true}) {
    for (const double spread : {1.0, 3.0}) {
      FeatureMapOptions options = ramps(1, 8);
      options.spread = spread;
      options.shared_channels = shared;
      const at::Tensor got = psi(options, u);
      for (int64_t i = 0; i < u.numel(); ++i) {
        for (int64_t c = 0; c < 8; ++c) {
          const double way = (c % 2 == 0 ? 1 : -1) * u[i].item<double>();
          const double want =
              std::max(way - spread * thresholds.at(c), 0.0) / spread;
          EXPECT_NEAR(got[i][c].item<double>(), want, 1e-5)
              << "channel " << c << " of " << u[i].item<double>();
        }
      }
    }
  }
}

TEST(RampsStart, OneChannelIsOneRamp) {
  const at::Tensor u = at::linspace(-2, 2, 9);
  EXPECT_TRUE(at::allclose(psi(ramps(1, 1), u).select(1, 0), u.relu()));
}

TEST(RampsStart, KeepsTheProjectionsAndHasNoDeadChannel) {
  at::manual_seed(3);
  FeatureMap random(64);
  at::manual_seed(3);
  FeatureMap map(64, ramps(8, 8));
  EXPECT_TRUE(at::equal(map->projection, random->projection));
  EXPECT_EQ(map->dead_features(2000), 0);
}

// The units that wait learn, as far as they are active where their channel is.
TEST(RampsStart, UnitsThatWaitHaveGradients) {
  at::manual_seed(3);
  FeatureMap map(16, ramps(8, 8));
  map->forward(at::randn({1, 1, 500, 16})).square().sum().backward();
  const at::Tensor learning = map->output_weight.grad().ne(0).sum(1);
  EXPECT_GE(learning.min().item<int64_t>(), 16) << learning;
}

TEST(RampsStart, RefusesWhatHasNoRamps) {
  FeatureMapOptions narrow = ramps(8, 8);
  narrow.shared_channels = true;
  narrow.hidden = 7;
  luna::testing::expect_error<c10::ValueError>([&] { FeatureMap(4, narrow); },
                                               {"hidden >= L", "7", "8"});
  FeatureMapOptions flat = ramps(8, 8);
  flat.spread = 0;
  luna::testing::expect_error<c10::ValueError>([&] { FeatureMap(4, flat); },
                                               {"spread > 0", "ramps"});
}

}  // namespace
}  // namespace luna::nn
