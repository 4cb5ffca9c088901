#include "train/train_step.h"

#include <ATen/Context.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/check.h"
#include "train/non_finite.h"
#include "train/tiny.h"

namespace luna::train {
namespace {

using luna::testing::expect_close;
using luna::testing::expect_same;
using luna::testing::tiny_config;
using luna::testing::tiny_data;
using luna::testing::TinyModel;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

std::shared_ptr<TinyModel> tiny_model(double dropout = 0.0) {
  at::manual_seed(7);
  return std::make_shared<TinyModel>(dropout);
}

data::Batch batch_of(const std::vector<int64_t>& indices) {
  return make_batch(*tiny_data(50, 1), indices, {});
}

TrainConfig one_batch() {
  TrainConfig config = tiny_config();
  config.accumulate = 1;
  config.schedule = {.name = "constant"};
  config.clip = 0.0;
  return config;
}

NamedTensors copies(const NamedTensors& tensors) {
  NamedTensors cloned;
  for (const auto& [name, tensor] : tensors) {
    cloned.emplace_back(name, tensor.clone());
  }
  return cloned;
}

void expect_all_same(const NamedTensors& a, const NamedTensors& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    expect_same(a[i].second, b[i].second, a[i].first);
  }
}

TEST(TrainStep, SmoothedLossIsThatOfSmoothedTargets) {
  const at::Tensor logits =
      at::tensor({1.0, 2.0, 4.0, 0.0, 0.0, 3.0}).view({2, 3});
  const double smoothing = 0.3;
  double expected = 0;
  const int64_t labels[] = {1, 2};
  for (int64_t row = 0; row < 2; ++row) {
    double sum = 0;
    for (int64_t c = 0; c < 3; ++c) {
      sum += std::exp(logits[row][c].item<double>());
    }
    for (int64_t c = 0; c < 3; ++c) {
      const double target =
          smoothing / 3 + (c == labels[row] ? 1 - smoothing : 0.0);
      expected -= target * (logits[row][c].item<double>() - std::log(sum)) / 2;
    }
  }
  EXPECT_NEAR(
      task_loss(logits, {.labels = at::tensor({1, 2}, at::kLong)}, smoothing)
          .item<double>(),
      expected, 1e-6);
}

TEST(TrainStep, AccumulatedBatchesAreOneLargeBatch) {
  TrainConfig config = one_batch();
  const auto whole = tiny_model(), parts = tiny_model();
  TrainStep at_once(whole, config);
  config.accumulate = 2;
  TrainStep in_two(parts, config);
  for (int64_t step = 0; step < 3; ++step) {
    at_once.run(step, std::vector{batch_of({0, 1, 2, 3, 4, 5})});
    in_two.run(step, std::vector{batch_of({0, 1, 2}), batch_of({3, 4, 5})});
  }
  const auto a = named_state(*whole), b = named_state(*parts);
  for (size_t i = 0; i < a.size(); ++i) {
    expect_close(b[i].second, a[i].second, 1e-5, a[i].first);
  }
  const Means means = in_two.take_means().means(),
              expected = at_once.take_means().means();
  EXPECT_NEAR(means.loss, expected.loss, 1e-5);
  EXPECT_EQ(means.accuracy, expected.accuracy);
}

// Adam forgets the gradient's size but for eps: with a huge eps a step is
// proportional to it.
TEST(TrainStep, ClippingLimitsTheNormOfTheStep) {
  TrainConfig config = one_batch();
  config.optimizer = {.name = "adamw", .lr = 1.0, .eps = 1e3};
  const auto moved = [&](double clip) {
    config.clip = clip;
    const auto model = tiny_model();
    const NamedTensors before = copies(named_state(*model));
    TrainStep step(model, config);
    step.run(0, std::vector{batch_of({0, 1, 2})});
    double square = 0;
    const NamedTensors after = named_state(*model);
    for (size_t i = 0; i < after.size(); ++i) {
      const at::Tensor d = (after[i].second - before[i].second).to(at::kDouble);
      square += d.square().sum().item<double>();
    }
    return std::sqrt(square) * config.optimizer.eps;
  };
  const double free = moved(0.0);
  EXPECT_NEAR(moved(free / 4), free / 4, free * 1e-2);
  EXPECT_NEAR(moved(free * 4), free, free * 1e-2);
}

TEST(TrainStep, RandomNumbersDependOnSeedAndStepAlone) {
  const auto a = tiny_model(0.5), b = tiny_model(0.5);
  TrainConfig config = one_batch();
  TrainStep first(a, config), second(b, config);
  for (int64_t step = 0; step < 3; ++step) {
    first.run(step, std::vector{batch_of({step, step + 1})});
  }
  for (int64_t step = 0; step < 3; ++step) {
    at::manual_seed(99);  // what others draw in between does not matter
    at::randn({17});
    second.run(step, std::vector{batch_of({step, step + 1})});
  }
  expect_all_same(named_state(*a), named_state(*b));

  const auto c = tiny_model(0.5);
  config.seed = 2;
  TrainStep third(c, config);
  third.run(0, std::vector{batch_of({0, 1})});
  const auto d = tiny_model(0.5);
  config.seed = 3;
  TrainStep fourth(d, config);
  fourth.run(0, std::vector{batch_of({0, 1})});
  EXPECT_FALSE(
      c->named_parameters()["table"].equal(d->named_parameters()["table"]));
}

TEST(TrainStep, SkipsWhatIsNotFinite) {
  const auto model = tiny_model();
  TrainStep step(model, one_batch());
  const std::vector good{batch_of({0, 1, 2})};
  step.run(0, good);
  const NamedTensors weights = copies(named_state(*model));

  model->disturb = [](const at::Tensor& x) { return x * kNaN; };
  step.run(1, good);
  expect_all_same(named_state(*model), weights);
  EXPECT_EQ(step.read().skips().total, 1);
  EXPECT_EQ(step.read().skips().in_row, 1);
  EXPECT_EQ(step.read().skips().why, Skips::Why::kLoss);

  // Forward is 0 whatever x is; backward is 0 * infinity.
  model->disturb = [](const at::Tensor& x) { return x + (x - x).sqrt(); };
  step.run(2, good);
  expect_all_same(named_state(*model), weights);
  EXPECT_EQ(step.read().skips().total, 2);
  EXPECT_EQ(step.read().skips().in_row, 2);
  EXPECT_EQ(step.read().skips().why, Skips::Why::kGradient);

  model->disturb = {};
  step.run(3, good);
  EXPECT_EQ(step.read().skips().total, 2);
  EXPECT_EQ(step.read().skips().in_row, 0);
  EXPECT_FALSE(named_state(*model)[0].second.equal(weights[0].second));
  EXPECT_TRUE(std::isfinite(step.take_means().means().loss));
}

TEST(TrainStep, StaysStillAfterTheLimit) {
  const auto model = tiny_model();
  TrainStep step(model, one_batch());
  const std::vector good{batch_of({0, 1, 2})};
  model->disturb = [](const at::Tensor& x) { return x * kNaN; };
  for (int64_t i = 0; i < kSkipLimit; ++i) step.run(i, good);
  const NamedTensors weights = copies(named_state(*model));
  model->disturb = {};
  step.run(kSkipLimit, good);
  expect_all_same(named_state(*model), weights);
  EXPECT_EQ(step.read().skips().in_row, kSkipLimit + 1);
}

TEST(TrainStep, NamesTheFirstBadModule) {
  const auto model = tiny_model();
  TrainStep step(model, one_batch());
  const auto run = [&] { step.accumulate(0, 0, batch_of({0, 1, 2})); };
  EXPECT_EQ(first_non_finite(*model, run), "");
  step.drop_gradients();
  model->disturb = [](const at::Tensor& x) { return x * kNaN; };
  EXPECT_EQ(first_non_finite(*model, run), "hidden (aten::mul)");
  step.drop_gradients();
  model->disturb = [](const at::Tensor& x) { return x + (x - x).sqrt(); };
  EXPECT_EQ(first_non_finite(*model, run), "hidden (its gradient)");
}

TEST(TrainStep, LearnsInBfloat16Autocast) {
  TrainConfig config = one_batch();
  config.autocast = "bf16";
  const auto model = tiny_model();
  TrainStep step(model, config);
  const std::vector batch{batch_of({0, 1, 2, 3, 4, 5, 6, 7})};
  step.run(0, batch);
  const double start = step.take_means().means().loss;
  for (int64_t i = 1; i < 30; ++i) step.run(i, batch);
  step.take_means();
  step.run(30, batch);
  EXPECT_LT(step.take_means().means().loss, start / 2);
  EXPECT_EQ(named_state(*model)[0].second.scalar_type(), at::kFloat);
}

}  // namespace
}  // namespace luna::train
