// Two layers and what lies between them against float64.

#include "ops/feed_forward.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/train_op.h"

namespace luna::ops {
namespace {

using at::Tensor;
using luna::testing::exact;
using luna::testing::expect_close;
using luna::testing::expect_same;

class FeedForwardOp : public luna::testing::TrainOpTest {};

TEST_P(FeedForwardOp, IsItsTwoLayers) {
  const int64_t width = 64, hidden = 128;
  for (const int64_t rows : {1, 15, 128, 300, 20000}) {
    const Tensor x = at::randn({rows, width}).to(at::kBFloat16);
    const Tensor up = at::randn({rows, width}).to(at::kBFloat16);
    // Biases that differ from each other by more than rounding does.
    const Tensor parameters[] = {
        at::randn({hidden, width}) / 8, at::arange(hidden) / 64.0 - 1,
        at::randn({width, hidden}) / 12, at::arange(width) / 16.0 - 2};
    std::vector<Tensor> mine = {leaf(x)}, expected = {exact(x)};
    for (const Tensor& p : parameters) {
      // As numbers that bfloat16 holds: the products round them.
      const Tensor held = p.to(at::kBFloat16).to(at::kFloat);
      mine.push_back(leaf(held));
      expected.push_back(exact(held));
    }
    const Tensor out =
        feed_forward(mine[0], mine[1], mine[2], mine[3], mine[4]);
    EXPECT_EQ(out.scalar_type(), at::kBFloat16);
    out.backward(up.to(device()));
    const Tensor out2 =
        at::linear(at::gelu(at::linear(expected[0], expected[1], expected[2])),
                   expected[3], expected[4]);
    out2.backward(up.to(at::kDouble));
    const std::string of = " of " + std::to_string(rows) + " rows";
    expect_close(out.cpu().to(at::kDouble), out2, 1e-2, "output" + of);
    const char* names[] = {"x", "up weight", "up bias", "down weight",
                           "down bias"};
    for (size_t i = 0; i < mine.size(); ++i) {
      expect_close(mine[i].grad().cpu().to(at::kDouble), expected[i].grad(),
                   1e-2, names[i] + of);
    }
    // The same bits twice.
    const auto first = mine[1].grad().clone();
    mine[1].mutable_grad() = Tensor();
    feed_forward(mine[0], mine[1], mine[2], mine[3], mine[4])
        .backward(up.to(device()));
    expect_same(mine[1].grad().cpu(), first.cpu(), "a second time" + of);
  }
}

TEST_P(FeedForwardOp, DropsHiddenNumbersOrScalesThem) {
  const int64_t rows = 300, width = 64, hidden = 128;
  const double p = 0.25;
  // What is dropped, read out half by half: hidden numbers that are all alike.
  const Tensor ones = at::ones({hidden}), none = at::zeros({width});
  std::vector<Tensor> halves;
  for (const int64_t first : {int64_t{0}, width}) {
    const Tensor down = at::zeros({width, hidden});
    down.narrow(1, first, width).fill_diagonal_(1);
    const auto no_x = at::zeros({rows, width}, at::kBFloat16).to(device());
    const auto read = feed_forward(
        no_x, at::zeros({hidden, width}).to(device()), ones.to(device()),
        down.to(device()), none.to(device()), p, seed());
    halves.push_back(read.cpu().to(at::kDouble) / at::gelu(ones)[0]);
  }
  const Tensor factors = at::cat(halves, 1);
  const Tensor kept = factors.gt(0.5);
  expect_close(factors, kept.to(at::kDouble) / (1 - p), 1e-2, "factors");
  EXPECT_NEAR(kept.to(at::kDouble).mean().item<double>(), 1 - p, 0.01);
  EXPECT_NEAR(kept.to(at::kDouble).mean(0).min().item<double>(), 1 - p, 0.15);

  const Tensor given[] = {at::randn({rows, width}).to(at::kBFloat16),
                          at::randn({hidden, width}) / 8, at::randn({hidden}),
                          at::randn({width, hidden}) / 12, at::randn({width})};
  std::vector<Tensor> mine, expected;
  for (const Tensor& x : given) {
    const Tensor held = x.to(at::kBFloat16).to(x.scalar_type());
    mine.push_back(leaf(held));
    expected.push_back(exact(held));
  }
  const Tensor up = at::randn({rows, width}).to(at::kBFloat16);
  const Tensor out =
      feed_forward(mine[0], mine[1], mine[2], mine[3], mine[4], p, seed());
  out.backward(up.to(device()));
  const Tensor bent =
      at::gelu(at::linear(expected[0], expected[1], expected[2]));
  const Tensor plain = at::linear(bent * kept.to(at::kDouble) / (1 - p),
                                  expected[3], expected[4]);
  plain.backward(up.to(at::kDouble));
  expect_close(out.cpu().to(at::kDouble), plain, 1e-2, "output");
  for (size_t i = 0; i < mine.size(); ++i) {
    expect_close(mine[i].grad().cpu().to(at::kDouble), expected[i].grad(), 1e-2,
                 "gradient " + std::to_string(i));
  }
}

TEST_P(FeedForwardOp, BendsAsGeluDoes) {
  // One hidden number is x's first, read out as it is; the others are 0.
  const Tensor values = at::arange(-640, 641).to(at::kFloat) / 100;
  Tensor x = at::zeros({values.size(0), 64});
  x.select(1, 0).copy_(values);
  x = x.to(at::kBFloat16);
  Tensor up = at::zeros({128, 64}), down = at::zeros({64, 128});
  up[77][0] = 1;
  down[5][77] = 1;
  const Tensor in = leaf(x);
  const Tensor out = feed_forward(in, leaf(up), leaf(at::zeros({128})),
                                  leaf(down), leaf(at::zeros({64})));
  out.select(1, 5).sum().backward();
  const Tensor exact_in = exact(x.select(1, 0));
  const Tensor expected = at::gelu(exact_in);
  expected.sum().backward();
  // Each number to bfloat16's rounding, the tails too.
  const auto near = [](const Tensor& a, const Tensor& b, const char* what) {
    const Tensor off = (a.cpu().to(at::kDouble) - b).abs();
    EXPECT_LE((off - b.abs() * 0.004).max().item<double>(), 1e-6) << what;
  };
  near(out.detach().select(1, 5), expected.detach(), "gelu");
  near(in.grad().select(1, 0), exact_in.grad(), "slope");
}

LUNA_EVERY_DEVICE(FeedForwardOp);

}  // namespace
}  // namespace luna::ops
