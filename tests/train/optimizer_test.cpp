#include "luna/train/optimizer.h"

#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/check.h"

namespace luna::train {
namespace {

using luna::testing::expect_same;

at::Tensor scalar(double value) { return at::full({}, value, at::kFloat); }

/// One number under Adam, as Kingma and Ba's Algorithm 1 and Loshchilov and
/// Hutter's Algorithm 2 state it.
struct OneNumber {
  OptimizerConfig config;
  double weight, m = 0, v = 0;
  int t = 0;

  void step(double gradient, double lr) {
    ++t;
    if (config.name == "adam") gradient += config.weight_decay * weight;
    m = config.beta1 * m + (1 - config.beta1) * gradient;
    v = config.beta2 * v + (1 - config.beta2) * gradient * gradient;
    const double m_hat = m / (1 - std::pow(config.beta1, t));
    const double v_hat = v / (1 - std::pow(config.beta2, t));
    const double decay = config.name == "adamw" ? config.weight_decay : 0.0;
    weight -= lr * (m_hat / (std::sqrt(v_hat) + config.eps) + decay * weight);
  }
};

class OptimizerTest : public ::testing::TestWithParam<const char*> {
 protected:
  OptimizerConfig config() const {
    return {
        .name = GetParam(), .beta2 = 0.98, .eps = 1e-6, .weight_decay = 0.1};
  }
};

TEST_P(OptimizerTest, MatchesThePublishedAlgorithm) {
  // 37: more than one vector register and a rest.
  const at::Tensor weights = at::randn({37});
  std::vector<OneNumber> expected;
  for (int64_t i = 0; i < 37; ++i) {
    expected.push_back({config(), weights[i].item<double>()});
  }
  Optimizer optimizer(config(), {{"w", weights}});
  for (int step = 0; step < 20; ++step) {
    const at::Tensor gradient = at::randn({37});
    weights.mutable_grad() = gradient.clone();
    const double lr = 1e-2 / (1 + step), scale = 1 + step % 3;
    optimizer.step(scalar(lr), {scalar(scale), scalar(0), scalar(1)});
    for (int64_t i = 0; i < 37; ++i) {
      expected[i].step(gradient[i].item<double>() / scale, lr);
    }
  }
  for (int64_t i = 0; i < 37; ++i) {
    EXPECT_NEAR(weights[i].item<double>(), expected[i].weight, 1e-5);
  }
}

TEST_P(OptimizerTest, ASkippedStepChangesNothing) {
  const at::Tensor weights = at::randn({9});
  Optimizer optimizer(config(), {{"w", weights}});
  const auto step = [&](double skip) {
    optimizer.step(scalar(0.1), {scalar(1), scalar(skip), scalar(1 - skip)});
  };
  weights.mutable_grad() = at::full({9}, 0.5);
  step(0);
  NamedTensors before;
  for (const auto& [name, tensor] : optimizer.state()) {
    before.emplace_back(name, tensor.clone());
  }
  const at::Tensor old = weights.clone();
  weights.mutable_grad().fill_(std::numeric_limits<double>::quiet_NaN());
  step(1);
  expect_same(weights, old, "weights");
  const NamedTensors after = optimizer.state();
  for (size_t i = 0; i < after.size(); ++i) {
    expect_same(after[i].second, before[i].second, after[i].first);
  }
}

TEST_P(OptimizerTest, StateIsNamedAfterTheParameters) {
  Optimizer optimizer(
      config(), {{"layers.0.w", at::zeros({2, 3})}, {"b", at::zeros({4})}});
  std::vector<std::string> names;
  for (const auto& [name, tensor] : optimizer.state()) names.push_back(name);
  EXPECT_EQ(names, (std::vector<std::string>{
                       "first_moment.layers.0.w", "second_moment.layers.0.w",
                       "first_moment.b", "second_moment.b", "updates"}));
}

TEST_P(OptimizerTest, FeatureMapsHaveTheirOwnLearningRate) {
  const at::Tensor start = at::randn({5});
  const at::Tensor phi = start.clone(), other = start.clone();
  auto options = config();
  options.feature_map_lr = 0.25;
  Optimizer optimizer(options,
                      {{"layers.0.attention.feature_map.projection", phi},
                       {"layers.0.attention.q_proj.weight", other}});
  OneNumber slow{config(), start[3].item<double>()},
      fast{config(), start[3].item<double>()};
  for (int step = 0; step < 5; ++step) {
    const at::Tensor gradient = at::randn({5});
    phi.mutable_grad() = gradient.clone();
    other.mutable_grad() = gradient.clone();
    optimizer.step(scalar(1e-2), {scalar(1), scalar(0), scalar(1)});
    slow.step(gradient[3].item<double>(), 0.25e-2);
    fast.step(gradient[3].item<double>(), 1e-2);
  }
  EXPECT_NEAR(phi[3].item<double>(), slow.weight, 1e-6);
  EXPECT_NEAR(other[3].item<double>(), fast.weight, 1e-6);
}

INSTANTIATE_TEST_SUITE_P(, OptimizerTest, ::testing::Values("adam", "adamw"),
                         [](const auto& info) {
                           return std::string(info.param);
                         });

TEST(Optimizer, NormIsThatOfAllGradientsAsOneVector) {
  const at::Tensor a = at::zeros({2}), b = at::zeros({1, 1});
  const Optimizer optimizer({}, {{"a", a}, {"b", b}});
  a.mutable_grad() = at::tensor({2.0, 3.0}, at::kFloat);
  b.mutable_grad() = at::full({1, 1}, 6.0);
  EXPECT_FLOAT_EQ(optimizer.gradient_norm().item<float>(), 7.0f);
}

}  // namespace
}  // namespace luna::train
