// A sum and its norm against float64, their dropout against its own sum.

#include "ops/add_norm.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <string>

#include "support/train_op.h"

namespace luna::ops {
namespace {

using at::Tensor;
using luna::testing::exact;
using luna::testing::expect_close;
using luna::testing::expect_same;

class AddNormOp : public luna::testing::TrainOpTest {};

TEST_P(AddNormOp, IsTheSumAndItsNorm) {
  for (const int64_t width : {2, 12, 64, 130, 300, 1024}) {
    for (const bool low : {false, true}) {
      const Tensor x = at::randn({3, 5, width});
      Tensor y = at::randn({3, 5, width});
      if (low) y = y.to(at::kBFloat16);
      const Tensor weight = at::randn({width}), bias = at::randn({width});
      const Tensor up_sum = at::randn({3, 5, width}),
                   up_normed = at::randn({3, 5, width});

      const Tensor x1 = leaf(x), y1 = leaf(y), w1 = leaf(weight),
                   b1 = leaf(bias);
      const auto [sum, normed, none] = add_norm(x1, y1, w1, b1, {});
      (sum * up_sum.to(device()) + normed * up_normed.to(device()))
          .sum()
          .backward();

      const Tensor x2 = exact(x), y2 = exact(y), w2 = exact(weight),
                   b2 = exact(bias);
      const Tensor sum2 = x2 + y2;
      const Tensor normed2 = at::layer_norm(sum2, {width}, w2, b2, 1e-5);
      (sum2 * up_sum + normed2 * up_normed).sum().backward();

      const std::string of = " of width " + std::to_string(width);
      // Two numbers: the norm forgets all but a sign, gradients nearly vanish.
      const double loose = width == 2 ? 1e-3 : 1e-5;
      expect_close(sum.cpu(), sum2, 1e-6, "sum" + of);
      expect_close(normed.cpu(), normed2, loose, "normed" + of);
      expect_close(x1.grad().cpu(), x2.grad(), loose, "x" + of);
      expect_close(y1.grad().cpu(), y2.grad(), low ? 4e-3 : loose, "y" + of);
      EXPECT_EQ(y1.grad().scalar_type(), y.scalar_type());
      expect_close(w1.grad().cpu(), w2.grad(), loose, "weight" + of);
      expect_close(b1.grad().cpu(), b2.grad(), loose, "bias" + of);
    }
  }
}

TEST_P(AddNormOp, GivesItsNormTwice) {
  for (const int64_t width : {12, 64, 256, 512}) {
    const Tensor x = at::randn({70, width}), y = at::randn({70, width});
    const Tensor weight = at::randn({width}), bias = at::randn({width});
    const Tensor up = at::randn({70, width}),
                 up_low = at::randn({70, width}).to(at::kBFloat16);
    const Tensor x1 = leaf(x), y1 = leaf(y.to(at::kBFloat16)),
                 w1 = leaf(weight), b1 = leaf(bias);
    const auto result = add_norm(x1, y1, w1, b1, {.low_dtype = at::kBFloat16});
    expect_same(result.low.detach().cpu(),
                result.normed.detach().to(at::kBFloat16).cpu(), "low");
    torch::autograd::backward({result.normed, result.low},
                              {up.to(device()), up_low.to(device())});

    const Tensor x2 = exact(x), y2 = exact(y.to(at::kBFloat16)),
                 w2 = exact(weight), b2 = exact(bias);
    (at::layer_norm(x2 + y2, {width}, w2, b2, 1e-5) * (up + up_low))
        .sum()
        .backward();
    const std::string of = " of width " + std::to_string(width);
    expect_close(x1.grad().cpu(), x2.grad(), 1e-5, "x" + of);
    expect_close(y1.grad().cpu(), y2.grad(), 4e-3, "y" + of);
    expect_close(w1.grad().cpu(), w2.grad(), 1e-5, "weight" + of);
    expect_close(b1.grad().cpu(), b2.grad(), 1e-5, "bias" + of);
  }
}

TEST_P(AddNormOp, WithoutASecondTermIsTheNorm) {
  const Tensor x = at::randn({7, 64}), weight = at::randn({64}),
               bias = at::randn({64}), up = at::randn({7, 64});
  const Tensor x1 = leaf(x), w1 = leaf(weight), b1 = leaf(bias);
  const auto [sum, normed, low] = add_norm(x1, std::nullopt, w1, b1, {});
  expect_same(sum.detach().cpu(), x, "x once more");
  (normed * up.to(device()) + 3 * sum).sum().backward();
  const Tensor x2 = exact(x), w2 = exact(weight), b2 = exact(bias);
  (at::layer_norm(x2, {64}, w2, b2, 1e-5) * up + 3 * x2).sum().backward();
  expect_close(x1.grad().cpu(), x2.grad(), 1e-5, "x");
  expect_close(w1.grad().cpu(), w2.grad(), 1e-5, "weight");
  expect_close(b1.grad().cpu(), b2.grad(), 1e-5, "bias");
}

TEST_P(AddNormOp, TakesHalfPrecisionWithoutGradients) {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    const double rounding = dtype == at::kHalf ? 2e-3 : 1.6e-2;
    for (const int64_t width : {2 + 128, 512, 1024}) {
      const auto make = [&](at::IntArrayRef sizes) {
        return at::randn(sizes).to(dtype);
      };
      const Tensor x = make({64, width}), y = make({64, width}),
                   weight = make({width}), bias = make({width});
      const auto result =
          add_norm(x.to(device()), y.to(device()), weight.to(device()),
                   bias.to(device()), {.normed_dtype = dtype});
      EXPECT_EQ(result.sum.scalar_type(), dtype);
      EXPECT_EQ(result.normed.scalar_type(), dtype);
      const Tensor sum = x.to(at::kDouble) + y.to(at::kDouble);
      const std::string of = " of width " + std::to_string(width);
      expect_close(result.sum.cpu(), sum, rounding, "sum" + of);
      expect_close(result.normed.cpu(),
                   at::layer_norm(sum, {width}, weight.to(at::kDouble),
                                  bias.to(at::kDouble), 1e-5),
                   rounding, "normed" + of);
    }
    const Tensor x = leaf(at::randn({2, 64}).to(dtype)),
                 weight = at::ones({64}, x.options().requires_grad(false));
    EXPECT_THROW(add_norm(x, x, weight, weight, {}), c10::TypeError);
  }
}

TEST_P(AddNormOp, DropsTheSameInBothDirections) {
  const double p = 0.3;
  const Tensor weight = at::ones({64}), bias = at::zeros({64});
  const Tensor x = leaf(at::zeros({500, 64})), y = leaf(at::ones({500, 64}));
  const auto [sum, normed, low] = add_norm(x, y, leaf(weight), leaf(bias),
                                           {.dropout_p = p, .seed = seed()});
  sum.sum().backward();
  // 32,000 draws: the share's deviation is .0026.
  EXPECT_NEAR(sum.eq(0).to(at::kDouble).mean().item<double>(), p, 0.013);
  EXPECT_NEAR(sum.max().item<double>(), 1 / (1 - p), 1e-6);
  expect_same(y.grad().cpu(), sum.detach().cpu(), "gradient of what was kept");
  expect_same(x.grad().cpu(), at::ones({500, 64}), "gradient of x");
  const auto [on_cpu, normed_on_cpu, low_on_cpu] =
      add_norm(x.detach().cpu(), y.detach().cpu(), weight, bias,
               {.dropout_p = p, .seed = seed().cpu()});
  expect_same(sum.detach().cpu(), on_cpu, "the CPU's");
}

LUNA_EVERY_DEVICE(AddNormOp);

}  // namespace
}  // namespace luna::ops
