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

/// SPEC's recipe.
const OptimizerConfig kApollo{
    .name = "apollo", .beta1 = 0.9, .eps = 1e-4, .sigma = 0.01};

/// One step with a gradient.
void apply(Optimizer& optimizer, const at::Tensor& weights,
           const at::Tensor& gradient, double lr) {
  weights.mutable_grad() = gradient.clone();
  optimizer.step(scalar(lr), {scalar(1), scalar(0), scalar(1)});
}

TEST(Apollo, TwoStepsOnPaper) {
  const at::Tensor w = at::full({1}, 1.0);
  Optimizer optimizer(kApollo, {{"w", w}});
  // t = 1: a = 1, m = g, no direction yet: B = 0, d = g / sigma = 2.
  apply(optimizer, w, at::full({1}, 0.02), 0.1);
  EXPECT_NEAR(w.item<double>(), 1 - 0.1 * 2, 1e-6);
  // t = 2: a = .1 / .19; D = -.22; m = .02 - .22 a = -.0957895;
  // N = 2 + .01; v = 2 / 2.01; B = a .22 v^3 / N = .0567512;
  // d = m / B = -1.687885.
  apply(optimizer, w, at::full({1}, -0.2), 0.1);
  EXPECT_NEAR(w.item<double>(), 0.8 + 0.1687885, 1e-6);
}

TEST(Apollo, MatchesThePublishedAlgorithm) {
  auto config = kApollo;
  config.weight_decay = 0.01;
  const at::Tensor w = at::randn({5, 3});
  std::vector<double> p(15), m(15), b(15), d(15);
  for (int i = 0; i < 15; ++i) p[i] = w.view({-1})[i].item<double>();
  Optimizer optimizer(config, {{"w", w}});
  for (int t = 1; t <= 12; ++t) {
    const at::Tensor gradient = at::randn({5, 3}), flat = gradient.view({-1});
    apply(optimizer, w, gradient, 0.02);
    const double a = 0.1 / (1 - std::pow(0.9, t));
    double fourth = 0;
    for (const double x : d) fourth += x * x * x * x;
    const double norm = std::pow(fourth, 0.25) + 1e-4 / 0.01;
    double along = 0, curved = 0;
    for (int i = 0; i < 15; ++i) {
      const double g = flat[i].item<double>() + 0.01 * p[i];
      const double delta = g - m[i], v = d[i] / norm;
      m[i] += a * delta;
      along += delta * v;
      curved += b[i] * v * v;
    }
    for (int i = 0; i < 15; ++i) {
      const double v = d[i] / norm;
      b[i] += (-a * along / norm - curved) * v * v;
      d[i] = m[i] / std::max(std::abs(b[i]), 0.01);
      p[i] -= 0.02 * d[i];
    }
  }
  for (int i = 0; i < 15; ++i) {
    EXPECT_NEAR(w.view({-1})[i].item<double>(), p[i],
                1e-3 * std::max(1.0, std::abs(p[i])));
  }
}

TEST(Apollo, FindsTheLowestPointOfAQuadratic) {
  const at::Tensor w = at::full({3}, 1.0);
  // Where |B| is below sigma a step is lr / sigma = 10 gradients long, too long
  // for a curvature far above .1: with 1 it diverges.
  const at::Tensor curvature = at::tensor({0.002, 0.01, 0.05}, at::kFloat);
  Optimizer optimizer(kApollo, {{"w", w}});
  for (int t = 0; t < 1500; ++t) {
    apply(optimizer, w, curvature.mul(w), 0.1 * std::min(1.0, t / 500.0));
  }
  EXPECT_LT(w.abs().max().item<double>(), 1e-3);
}

TEST(Optimizer, EachGradientIsClippedByItself) {
  OptimizerConfig config = kApollo;
  config.clip_each = 0.1;
  const at::Tensor a = at::zeros({2}), b = at::zeros({1});
  Optimizer optimizer(config, {{"a", a}, {"b", b}});
  a.mutable_grad() = at::tensor({6.0, 8.0}, at::kFloat);
  b.mutable_grad() = at::full({1}, 0.1);
  // Divided by 2 first: (3, 4) is clipped to (.06, .08), .05 is not. The first
  // step is g / sigma.
  optimizer.step(scalar(1), {scalar(2), scalar(0), scalar(1)});
  EXPECT_NEAR(a[0].item<double>(), -6, 1e-4);
  EXPECT_NEAR(a[1].item<double>(), -8, 1e-4);
  EXPECT_NEAR(b[0].item<double>(), -5, 1e-4);
}

TEST(Apollo, StateHasTheDirection) {
  const Optimizer optimizer(kApollo, {{"w", at::zeros({2})}});
  std::vector<std::string> names;
  for (const auto& [name, tensor] : optimizer.state()) names.push_back(name);
  EXPECT_EQ(names,
            (std::vector<std::string>{"first_moment.w", "second_moment.w",
                                      "direction.w", "updates"}));
}

TEST(Optimizer, NormIsThatOfAllGradientsAsOneVector) {
  const at::Tensor a = at::zeros({2}), b = at::zeros({1, 1});
  const Optimizer optimizer({}, {{"a", a}, {"b", b}});
  a.mutable_grad() = at::tensor({2.0, 3.0}, at::kFloat);
  b.mutable_grad() = at::full({1, 1}, 6.0);
  EXPECT_FLOAT_EQ(optimizer.gradient_norm().item<float>(), 7.0f);
}

}  // namespace
}  // namespace luna::train
