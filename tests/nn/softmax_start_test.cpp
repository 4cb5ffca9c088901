#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <luna/nn/feature_map.h>

#include <cmath>

#include "support/errors.h"

namespace luna::nn {
namespace {

TEST(SoftmaxStart, FollowsTheExponential) {
  FeatureMapOptions options;
  options.M = 8;
  options.L = 1;
  options.hidden = 64;
  options.start = "softmax";
  FeatureMap map(4, options);
  const auto x = at::tensor({0.5, -1.0, 0.25, 0.0});
  const auto phi = map->forward(x.view({1, 1, 1, 4})).view({8});
  // exp(+-2 x_j) / sqrt(M); straight lines of 1/8 between the knots.
  for (int64_t j = 0; j < 4; ++j) {
    const double u = 2 * x[j].item<double>();
    for (const int64_t sign : {1, -1}) {
      const double expected = std::exp(sign * u) / std::sqrt(8.0);
      EXPECT_NEAR(phi[sign > 0 ? j : 4 + j].item<double>(), expected,
                  0.003 * expected);
    }
  }
}

// The kernel that it makes falls with the distance of q and k as exp(q.k) of
// rows of one length does: more for what points elsewhere.
TEST(SoftmaxStart, PrefersWhatIsAlike) {
  at::manual_seed(5);
  FeatureMapOptions options;
  options.M = 32;
  options.L = 1;
  options.start = "softmax";
  FeatureMap map(16, options);
  const at::NoGradGuard no_grad;
  const at::Tensor keys = at::randn({1, 1, 40, 16});
  const at::Tensor phi = map->forward(keys)[0][0];
  EXPECT_TRUE(phi.gt(0).all().item<bool>());
  const at::Tensor scores = phi.matmul(phi.t());
  const at::Tensor exact = keys[0][0].matmul(keys[0][0].t()) / 4.0;
  // Ranks: rows of the kernel beside rows of softmax's logits.
  double agreement = 0;
  for (int64_t i = 0; i < 40; ++i) {
    const at::Tensor both = at::stack({scores[i].log(), exact[i]});
    agreement += at::corrcoef(both)[0][1].item<double>() / 40;
  }
  EXPECT_GT(agreement, 0.7);
}

TEST(SoftmaxStart, RefusesOtherStarts) {
  FeatureMapOptions options;
  options.start = "tents";
  luna::testing::expect_error<c10::ValueError>(
      [&] { FeatureMap(4, options); }, {"start", "random", "softmax", "tents"});
}

}  // namespace
}  // namespace luna::nn
