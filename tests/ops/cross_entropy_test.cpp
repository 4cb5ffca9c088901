// The loss of many classes against torch's own in float64.

#include "ops/cross_entropy.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <limits>

#include "support/check.h"
#include "support/device.h"

namespace luna::ops {
namespace {

using at::Tensor;
using luna::testing::DeviceTest;
using luna::testing::expect_close;
using luna::testing::expect_same;

constexpr int64_t kIgnored = -100;

class CrossEntropyTest : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    at::manual_seed(5);
  }
};

TEST_P(CrossEntropyTest, IsTorchsLossAndGradient) {
  for (const int64_t classes : {2, 10, 257, 2050, 8000}) {
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const double smoothing : {0.0, 0.1}) {
        const Tensor logits = (4 * at::randn({37, classes})).to(dtype);
        Tensor labels = at::randint(classes, {37}, at::kLong);
        labels.narrow(0, 5, 9).fill_(kIgnored);
        const Tensor exact =
            logits.to(at::kDouble).clone().set_requires_grad(true);
        const Tensor expected = at::cross_entropy_loss(
            exact, labels, {}, at::Reduction::Mean, kIgnored, smoothing);
        (3 * expected).backward();

        const Tensor given =
            logits.to(device()).clone().set_requires_grad(true);
        const auto [loss, correct] =
            cross_entropy(given, labels.to(device()),
                          {.ignored = kIgnored, .smoothing = smoothing});
        (3 * loss).backward();

        const std::string of = " of " + std::to_string(classes) + " classes, " +
                               c10::toString(dtype) + ", smoothing " +
                               std::to_string(smoothing);
        expect_close(loss.detach().cpu(), expected.detach(), 1e-5, "loss" + of);
        EXPECT_EQ(given.grad().scalar_type(), dtype);
        // One rounding to the logits' dtype.
        const double rounding = dtype == at::kFloat      ? 1e-5
                                : dtype == at::kBFloat16 ? 4e-3
                                                         : 2e-3;
        expect_close(given.grad().cpu(), exact.grad(), rounding,
                     "gradient" + of);
        EXPECT_EQ(given.grad().narrow(0, 5, 9).abs().max().item<float>(), 0);
        EXPECT_EQ(correct.item<float>(),
                  logits.to(at::kFloat).argmax(-1).eq(labels).sum().item<int>())
            << of;
      }
    }
  }
}

TEST_P(CrossEntropyTest, OfTheLargestTheFirstIsTheAnswer) {
  const Tensor logits =
      at::tensor({1.f, 3.f, 3.f, 0.f}).expand({4, 4}).to(device());
  const Tensor labels = at::tensor({0, 1, 2, 3}, at::kLong).to(device());
  EXPECT_EQ(cross_entropy(logits, labels).correct.item<float>(), 1);
}

TEST_P(CrossEntropyTest, LargeLogitsDoNotOverflow) {
  const Tensor logits =
      at::tensor({3e38f, -3e38f, 0.f, -3e38f, 1e4f, 1e4f}).reshape({2, 3});
  const Tensor labels = at::tensor({0, 1}, at::kLong);
  const auto expected =
      at::cross_entropy_loss(logits.to(at::kDouble), labels).item<double>();
  const Tensor given = logits.to(device()).set_requires_grad(true);
  const Tensor loss = cross_entropy(given, labels.to(device())).loss;
  EXPECT_NEAR(loss.item<double>(), expected, 1e-6);  // (0 + log 2) / 2
  loss.backward();
  EXPECT_TRUE(given.grad().isfinite().all().item<bool>());
}

TEST_P(CrossEntropyTest, ClassesMayBeImpossible) {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  const Tensor logits = at::tensor({kNever, 2.f, 1.f, kNever}).reshape({1, 4});
  const Tensor labels = at::ones({1}, at::kLong);
  const Tensor given = logits.to(device()).set_requires_grad(true);
  const Tensor loss = cross_entropy(given, labels.to(device())).loss;
  EXPECT_NEAR(loss.item<double>(), std::log1p(std::exp(-1.0)), 1e-6);
  loss.backward();
  EXPECT_EQ(given.grad()[0][0].item<float>(), 0);
}

TEST_P(CrossEntropyTest, NumbersThatAreNoneAreSeen) {
  Tensor logits = at::zeros({2, 300});
  logits[1][7] = std::numeric_limits<float>::quiet_NaN();
  const Tensor labels = at::tensor({0, 1}, at::kLong);
  EXPECT_TRUE(std::isnan(cross_entropy(logits.to(device()), labels.to(device()))
                             .loss.item<float>()));
}

TEST_P(CrossEntropyTest, GivesTheSameBitsTwice) {
  const Tensor logits = at::randn({700, 8000}).to(device()).to(at::kBFloat16);
  const Tensor labels = at::randint(8000, {700}, at::kLong).to(device());
  expect_same(cross_entropy(logits, labels).loss,
              cross_entropy(logits, labels).loss, "loss");
}

TEST_P(CrossEntropyTest, BadInputIsNamed) {
  const Tensor logits = at::zeros({2, 3}, device()),
               labels = at::zeros({2}, at::device(device()).dtype(at::kLong));
  EXPECT_THROW(cross_entropy(logits.to(at::kDouble), labels), c10::TypeError);
  EXPECT_THROW(cross_entropy(logits, labels.to(at::kInt)), c10::TypeError);
  EXPECT_THROW(cross_entropy(logits, labels.narrow(0, 0, 1)), c10::ValueError);
  EXPECT_THROW(cross_entropy(logits[0], labels), c10::ValueError);
  EXPECT_THROW(cross_entropy(logits, labels, {.smoothing = 1.0}),
               c10::ValueError);
}

LUNA_EVERY_DEVICE(CrossEntropyTest);

}  // namespace
}  // namespace luna::ops
