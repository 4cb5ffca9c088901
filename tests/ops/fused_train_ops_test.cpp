// The fused parts of a training step against the plain operations, and the GPU
// against the CPU.

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <array>
#include <cmath>

#include "ops/adam_step.h"
#include "ops/add_norm.h"
#include "ops/cross_entropy.h"
#include "ops/device_graph.h"
#include "ops/embed.h"
#include "ops/feed_forward.h"
#include "ops/linear.h"
#include "ops/linear_sums.h"
#include "ops/mlp_head.h"
#include "support/check.h"
#include "support/filled_memory.h"
#include "train/device_run.h"

namespace luna::ops {
namespace {

using at::Tensor;
using luna::testing::DeviceTest;
using luna::testing::expect_close;
using luna::testing::expect_same;

class FusedTrainOpsTest : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    at::manual_seed(3);
  }
  /// The same numbers on the device, a leaf.
  Tensor leaf(const Tensor& x) const {
    return x.detach().to(device()).clone().set_requires_grad(true);
  }
  Tensor seed() const {
    return at::tensor({int64_t{123456789}, int64_t{-987}}, at::kLong)
        .to(device());
  }

 private:
  const luna::testing::FilledMemory filled_;
};

Tensor exact(const Tensor& x) {
  return x.detach().to(at::kDouble).clone().set_requires_grad(true);
}

TEST_P(FusedTrainOpsTest, AddNormIsTheSumAndItsNorm) {
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

TEST_P(FusedTrainOpsTest, AddNormGivesItsNormTwice) {
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

TEST_P(FusedTrainOpsTest, AddNormWithoutASecondTermIsTheNorm) {
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

TEST_P(FusedTrainOpsTest, AddNormTakesHalfPrecisionWithoutGradients) {
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

TEST_P(FusedTrainOpsTest, AddNormDropsTheSameInBothDirections) {
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

TEST_P(FusedTrainOpsTest, EmbedIsTheSumOfTwoRows) {
  for (const int64_t rows : {6, 9}) {
    const Tensor ids = at::randint(11, {4, 6}, at::kLong);
    const Tensor mask =
        at::arange(6).lt(at::tensor({6, 0, 3, 5}, at::kLong).unsqueeze(1));
    const Tensor tokens = at::randn({11, 10}),
                 positions = at::randn({rows, 10});
    const Tensor up = at::randn({4, 6, 10});
    const Tensor t1 = leaf(tokens), p1 = leaf(positions);
    const Tensor out =
        embed(ids.to(device()), t1, p1, {.mask = mask.to(device())});
    (out * up.to(device())).sum().backward();
    const Tensor t2 = exact(tokens), p2 = exact(positions);
    const Tensor out2 =
        (at::embedding(t2, ids) + p2.narrow(0, 0, 6)) * mask.unsqueeze(-1);
    (out2 * up).sum().backward();
    expect_close(out.cpu(), out2, 1e-6, "rows");
    expect_close(t1.grad().cpu(), t2.grad(), 1e-5, "tokens");
    expect_close(p1.grad().cpu(), p2.grad(), 1e-5, "positions");
  }
}

TEST_P(FusedTrainOpsTest, EmbedOfManyTokensIsTheSumOfTwoRows) {
  for (const auto& [width, length] : {std::pair(64, 1000), std::pair(136, 300),
                                      std::pair(70, 7), std::pair(512, 40)}) {
    const int64_t batch = length > 500 ? 3 : 90;
    // Some ids come often, some never.
    const Tensor ids =
        at::randint(200, {batch, length}, at::kLong).bitwise_and(0xF3);
    const Tensor tokens = at::randn({258, width}),
                 positions = at::randn({length, width}),
                 up = at::randn({batch, length, width});
    const Tensor t1 = leaf(tokens), p1 = leaf(positions);
    const Tensor out = embed(ids.to(device()), t1, p1, {});
    out.backward(up.to(device()));
    const Tensor t2 = exact(tokens), p2 = exact(positions);
    const Tensor out2 = at::embedding(t2, ids) + p2;
    out2.backward(up.to(at::kDouble));
    expect_close(out.cpu(), out2, 1e-6, "rows");
    expect_close(t1.grad().cpu(), t2.grad(), 1e-5, "tokens");
    expect_close(p1.grad().cpu(), p2.grad(), 1e-5, "positions");
    const Tensor first = t1.grad().clone();
    t1.mutable_grad() = Tensor();
    embed(ids.to(device()), t1, p1, {}).backward(up.to(device()));
    expect_same(t1.grad().cpu(), first.cpu(), "a second time");
  }
}

TEST_P(FusedTrainOpsTest, EmbedCountsPlacesInPackedSequences) {
  // Sequences of 300, 0, 1 and 411 tokens, a filler of 88
  const Tensor starts = at::tensor({0, 300, 300, 301, 712, 800}, at::kLong);
  Tensor places = at::zeros({800}, at::kLong);
  places.narrow(0, 0, 300).copy_(at::arange(300));
  places.narrow(0, 301, 411).copy_(at::arange(411));
  for (const int64_t width : {64, 70, 256}) {
    const Tensor ids = at::randint(100, {1, 800}, at::kLong);
    const Tensor tokens = at::randn({100, width}),
                 positions = at::randn({413, width});
    Tensor up = at::randn({1, 800, width});
    const Tensor t1 = leaf(tokens), p1 = leaf(positions);
    const auto sum = [&](double p) {
      return embed(
          ids.to(device()), t1, p1,
          {.dropout_p = p, .seed = seed(), .starts = starts.to(device())});
    };
    const Tensor out = sum(0);
    out.backward(up.to(device()));
    const Tensor t2 = exact(tokens), p2 = exact(positions);
    const Tensor out2 = at::embedding(t2, ids) + at::embedding(p2, places);
    up.narrow(1, 712, 88).zero_();  // what comes back for the filler
    out2.backward(up.to(at::kDouble));
    expect_close(out.cpu(), out2, 1e-6, "rows");
    expect_close(t1.grad().cpu(), t2.grad(), 1e-5, "tokens");
    expect_close(p1.grad().cpu(), p2.grad(), 1e-5, "positions");
    const Tensor dropped = sum(0.4).detach().cpu();
    const Tensor kept = dropped.ne(0);
    EXPECT_NEAR(kept.to(at::kDouble).mean().item<double>(), 0.6, 0.02);
    expect_close(dropped, out2.detach() * kept / 0.6, 1e-6, "dropped");
  }
}

TEST_P(FusedTrainOpsTest, EmbedDropsTheSameInBothDirections) {
  const double p = 0.4;
  const Tensor ids = at::randint(5, {30, 40}, at::kLong).to(device());
  const Tensor tokens = leaf(at::ones({5, 16})),
               positions = leaf(at::zeros({40, 16}));
  const Tensor out =
      embed(ids, tokens, positions, {.dropout_p = p, .seed = seed()});
  out.sum().backward();
  // 19,200 draws: the share's deviation is .0035.
  EXPECT_NEAR(out.eq(0).to(at::kDouble).mean().item<double>(), p, 0.018);
  expect_close(positions.grad().cpu(), out.detach().sum(0).cpu(), 1e-6,
               "positions");
  const Tensor expected = at::zeros({5, 16}).index_add(
      0, ids.cpu().flatten(), out.detach().cpu().flatten(0, 1));
  expect_close(tokens.grad().cpu(), expected, 1e-5, "tokens");
  const Tensor on_cpu =
      embed(ids.cpu(), tokens.detach().cpu(), positions.detach().cpu(),
            {.dropout_p = p, .seed = seed().cpu()});
  expect_same(out.detach().cpu(), on_cpu, "the CPU's");
}

TEST_P(FusedTrainOpsTest, LinearGradientsAreExact) {
  const std::pair<int64_t, int64_t> layers[] = {
      {2, 10}, {64, 64}, {192, 64}, {64, 128}, {72, 40}, {514, 6}, {256, 512}};
  for (const int64_t rows : {1, 63, 64, 65, 1000, 40000}) {
    for (const auto& [out, in] : layers) {
      if (rows == 40000 && out * in > 64 * 128) continue;
      const Tensor up = at::randn({rows, out}).to(at::kBFloat16),
                   x = at::randn({rows, in}).to(at::kBFloat16);
      const auto [weight, bias] =
          linear_gradients(up.to(device()), x.to(device()));
      const Tensor exact_up = up.to(at::kDouble);
      const std::string of = std::to_string(rows) + " rows, " +
                             std::to_string(out) + " x " + std::to_string(in);
      expect_close(weight.cpu(), at::mm(exact_up.t(), x.to(at::kDouble)), 1e-5,
                   "weight of " + of);
      expect_close(bias.cpu(), exact_up.sum(0), 1e-5, "bias of " + of);
    }
  }
}

TEST_P(FusedTrainOpsTest, LinearIsThatOfAutocast) {
  const auto type = device().type();
  const Tensor x = at::randn({5, 20, 16}), weight = at::randn({24, 16}),
               bias = at::randn({24}), up = at::randn({5, 20, 24});
  const auto run = [&](auto&& product) {
    std::vector<Tensor> all = {leaf(x), leaf(weight), leaf(bias)};
    at::autocast::set_autocast_dtype(type, at::kBFloat16);
    at::autocast::set_autocast_enabled(type, true);
    const Tensor out = product(all[0], all[1], all[2]);
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(type, false);
    EXPECT_EQ(out.scalar_type(), at::kBFloat16);
    (out * up.to(device())).sum().backward();
    return std::vector<Tensor>{out.detach(), all[0].grad(), all[1].grad(),
                               all[2].grad()};
  };
  const auto actual = run([](auto&&... a) { return linear(a...); });
  const auto expected = run([](auto&&... a) { return at::linear(a...); });
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_EQ(actual[i].scalar_type(), expected[i].scalar_type());
    expect_close(actual[i].cpu().to(at::kDouble),
                 expected[i].cpu().to(at::kDouble), 4e-3,
                 "tensor " + std::to_string(i));
  }
}

TEST_P(FusedTrainOpsTest, FeedForwardIsItsTwoLayers) {
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

TEST_P(FusedTrainOpsTest, FeedForwardDropsHiddenNumbersOrScalesThem) {
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

TEST_P(FusedTrainOpsTest, FeedForwardBendsAsGeluDoes) {
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

TEST_P(FusedTrainOpsTest, MlpHeadIsItsTwoLayers) {
  for (const auto& [rows, width, hidden, classes] :
       {std::array<int64_t, 4>{64, 64, 128, 10},
        {1, 2, 3, 2},
        {300, 256, 97, 64},
        {33, 100, 512, 1}}) {
    const Tensor x = at::randn({rows, width}), up = at::randn({rows, classes});
    const Tensor parameters[] = {at::randn({hidden, width}),
                                 at::randn({hidden}),
                                 at::randn({classes, hidden})};
    std::vector<Tensor> mine = {leaf(x)}, expected = {exact(x)};
    for (const Tensor& p : parameters) {
      mine.push_back(leaf(p));
      expected.push_back(exact(p));
    }
    const Tensor out = mlp_head(mine[0], mine[1], mine[2], mine[3]);
    out.backward(up.to(device()));
    const Tensor out2 = at::linear(
        at::linear(expected[0], expected[1], expected[2]).relu(), expected[3]);
    out2.backward(up.to(at::kDouble));
    expect_close(out.cpu(), out2, 1e-5, "logits");
    for (size_t i = 0; i < mine.size(); ++i) {
      expect_close(mine[i].grad().cpu(), expected[i].grad(), 1e-5,
                   "tensor " + std::to_string(i));
    }
  }
}

// With the sizes of a real step, the same bits as without a recording, time
// and again.
TEST_P(FusedTrainOpsTest, RecordedStepsRepeat) {
  if (!device().is_cuda()) GTEST_SKIP() << "a CPU records nothing";
  const int64_t batch = 64, length = 1024, width = 64;
  const auto drawn = [&](at::IntArrayRef sizes) {
    return leaf(at::randn(sizes) / 8);
  };
  const Tensor ids = at::randint(256, {batch, length}, at::kLong).to(device());
  const Tensor labels = at::randint(10, {batch}, at::kLong).to(device());
  std::vector<Tensor> all;
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{258, width},
                                            {length, width},
                                            {width},
                                            {width},
                                            {width, width},
                                            {width},
                                            {width, width},
                                            {width},
                                            {width, width},
                                            {width},
                                            {2 * width, width},
                                            {2 * width},
                                            {width, 2 * width},
                                            {width},
                                            {128, width},
                                            {128},
                                            {10, 128}}) {
    all.push_back(drawn(sizes));
  }
  const Tensor words = seed();
  std::vector<Tensor> results;
  const auto step = [&] {
    for (const Tensor& p : all) p.mutable_grad() = Tensor();
    const Tensor x =
        embed(ids, all[0], all[1], {.dropout_p = 0.1, .seed = words});
    const auto [same, normed, low] = add_norm(x, std::nullopt, all[2], all[3],
                                              {.normed_dtype = at::kBFloat16});
    const auto three = joint_linears(normed, {all[4], all[6], all[8]},
                                     {all[5], all[7], all[9]}, at::kBFloat16);
    const Tensor y = feed_forward(three[0] + three[1] * three[2], all[10],
                                  all[11], all[12], all[13]);
    const auto [sum, again, none] =
        add_norm(same, y, all[2], all[3], {.dropout_p = 0.1, .seed = words});
    const Tensor logits = mlp_head(again.mean(1), all[14], all[15], all[16]);
    cross_entropy(logits, labels).loss.backward();
    std::vector<Tensor> grads;
    for (const Tensor& p : all) grads.push_back(p.grad());
    grads.push_back(norm_of_few(grads));
    if (results.empty()) {
      for (const Tensor& g : grads) results.push_back(at::zeros_like(g));
    }
    for (size_t i = 0; i < grads.size(); ++i) results[i].copy_(grads[i]);
  };
  step();
  std::vector<Tensor> expected;
  for (const Tensor& r : results) expected.push_back(r.clone());
  const auto graph = capture_graph(device(), step);
  for (int turn = 0; turn < 3; ++turn) {
    for (const Tensor& r : results) r.zero_();
    graph->replay();
    for (size_t i = 0; i < results.size(); ++i) {
      expect_same(results[i].cpu(), expected[i].cpu(),
                  "tensor " + std::to_string(i));
    }
  }
}

TEST_P(FusedTrainOpsTest, AdamStepIsThatOfTorch) {
  if (!device().is_cuda()) GTEST_SKIP() << "a CPU has torch's";
  for (const bool decoupled : {false, true}) {
    std::vector<Tensor> lists[2][4];
    for (const int64_t size : {1, 1000, 1024, 1025, 30000}) {
      for (int kind = 0; kind < 4; ++kind) {
        Tensor x = at::randn({size}).to(device());
        if (kind == 3) x = x.square();
        lists[0][kind].push_back(x);
        lists[1][kind].push_back(x.clone());
      }
    }
    const auto scalar = [&](double x) { return at::full({}, x).to(device()); };
    expect_close(norm_of_few(lists[0][1]).cpu(),
                 at::cat(lists[0][1]).cpu().to(at::kDouble).norm(), 1e-6,
                 "norm");
    for (const double skip : {0.0, 1.0}) {
      auto& [p, g, m, v] = lists[0];
      adam_step_of_few(p, g, m, v,
                       {scalar(7), scalar(0.01), scalar(2), scalar(skip)},
                       {0.9, 0.98, 1e-8, 0.1, decoupled});
      auto& [tp, tg, tm, tv] = lists[1];
      const std::vector<Tensor> steps(tp.size(), scalar(7));
      // Torch's divides the gradients where they are.
      std::vector<Tensor> own;
      for (const Tensor& x : tg) own.push_back(x.clone());
      const auto torchs = [&](auto&& update) {
        update(tp, own, tm, tv, at::TensorList{}, steps, scalar(0.01), 0.9,
               0.98, 0.1, 1e-8, false, false, scalar(2), scalar(skip));
      };
      if (decoupled) {
        torchs([](auto&&... a) { at::_fused_adamw_(a...); });
      } else {
        torchs([](auto&&... a) { at::_fused_adam_(a...); });
      }
      for (const int kind : {0, 2, 3}) {
        for (size_t i = 0; i < p.size(); ++i) {
          expect_close(lists[0][kind][i].cpu(), lists[1][kind][i].cpu(), 1e-6,
                       "tensor " + std::to_string(i) + " of kind " +
                           std::to_string(kind));
        }
      }
    }
  }
}

TEST_P(FusedTrainOpsTest, JoinedPartsStartAligned) {
  std::vector<Tensor> parts;
  for (const int64_t size : {40, 3, 8, 1, 5000}) {
    parts.push_back(at::randn({size}).to(device()));
  }
  const Tensor all = join_parts(parts, at::kBFloat16).cpu();
  int64_t from = 0;
  for (const Tensor& part : parts) {
    const int64_t size = part.numel();
    expect_same(all.narrow(0, from, size), part.cpu().to(at::kBFloat16),
                "part of " + std::to_string(size));
    from += (size + 7) / 8 * 8;
  }
  EXPECT_EQ(all.numel(), from);
}

TEST_P(FusedTrainOpsTest, JointLinearsAreThoseOfEachLayer) {
  for (const std::vector<int64_t>& widths :
       {std::vector<int64_t>{16, 16, 16}, {8, 24}, {3, 5, 7}, {20}}) {
    const Tensor x = at::randn({4, 6, 16});
    const Tensor x1 = leaf(x), x2 = exact(x);
    std::vector<Tensor> weights, biases, exact_weights, exact_biases, ups;
    for (const int64_t width : widths) {
      const Tensor weight = at::randn({width, 16}), bias = at::randn({width});
      weights.push_back(leaf(weight));
      biases.push_back(leaf(bias));
      exact_weights.push_back(exact(weight));
      exact_biases.push_back(exact(bias));
      ups.push_back(at::randn({4, 6, width}));
    }
    const auto outs = joint_linears(x1, weights, biases, at::kBFloat16);
    ASSERT_EQ(outs.size(), widths.size());
    std::vector<Tensor> losses, exact_losses;
    for (size_t i = 0; i < outs.size(); ++i) {
      EXPECT_EQ(outs[i].scalar_type(), at::kBFloat16);
      const Tensor out = at::linear(x2, exact_weights[i], exact_biases[i]);
      expect_close(outs[i].cpu().to(at::kDouble), out, 6e-3, "output");
      losses.push_back((outs[i] * ups[i].to(device())).sum());
      exact_losses.push_back((out * ups[i]).sum());
    }
    at::stack(losses).sum().backward();
    at::stack(exact_losses).sum().backward();
    expect_close(x1.grad().cpu(), x2.grad(), 8e-3, "x");
    for (size_t i = 0; i < outs.size(); ++i) {
      expect_close(weights[i].grad().cpu(), exact_weights[i].grad(), 8e-3,
                   "weight");
      expect_close(biases[i].grad().cpu(), exact_biases[i].grad(), 8e-3,
                   "bias");
    }
  }
}

// Rows of 64 numbers have kernels of their own on a GPU.
TEST_P(FusedTrainOpsTest, JointLinearsOfNarrowRowsAreThoseOfEachLayer) {
  for (const std::vector<int64_t>& widths :
       {std::vector<int64_t>{64}, {64, 64, 64}, {128}, {64, 128}, {192}}) {
    for (const int64_t rows : {1, 17, 128, 20000}) {
      if (rows == 20000 && widths.size() == 1) continue;
      const Tensor x = at::randn({rows, 64}).to(at::kBFloat16);
      const Tensor x1 = leaf(x), x2 = exact(x);
      std::vector<Tensor> weights, biases, exact_weights, exact_biases, ups,
          exact_ups;
      for (const int64_t width : widths) {
        // As numbers that bfloat16 holds: the products round them.
        const Tensor weight = at::randn({width, 64}).to(at::kBFloat16),
                     bias = (at::arange(width) / 16.0 - 2).to(at::kBFloat16);
        weights.push_back(leaf(weight.to(at::kFloat)));
        biases.push_back(leaf(bias.to(at::kFloat)));
        exact_weights.push_back(exact(weight));
        exact_biases.push_back(exact(bias));
        const Tensor up = at::randn({rows, width}).to(at::kBFloat16);
        ups.push_back(up.to(device()));
        exact_ups.push_back(up.to(at::kDouble));
      }
      const auto run = [&] {
        const auto outs = joint_linears(x1, weights, biases, at::kBFloat16);
        torch::autograd::backward(outs, ups);
        return outs;
      };
      const auto outs = run();
      std::vector<Tensor> exact_outs;
      for (size_t i = 0; i < widths.size(); ++i) {
        exact_outs.push_back(at::linear(x2, exact_weights[i], exact_biases[i]));
      }
      torch::autograd::backward(exact_outs, exact_ups);
      const std::string of = " of " + std::to_string(rows) + " rows, layer ";
      expect_close(x1.grad().cpu().to(at::kDouble), x2.grad(), 4e-3, "x" + of);
      for (size_t i = 0; i < outs.size(); ++i) {
        const std::string here = of + std::to_string(i);
        expect_close(outs[i].cpu().to(at::kDouble), exact_outs[i], 4e-3,
                     "output" + here);
        expect_close(weights[i].grad().cpu(), exact_weights[i].grad(), 1e-5,
                     "weight" + here);
        expect_close(biases[i].grad().cpu(), exact_biases[i].grad(), 1e-5,
                     "bias" + here);
      }
      const Tensor first = weights[0].grad().clone();
      weights[0].mutable_grad() = Tensor();
      run();
      expect_same(weights[0].grad().cpu(), first.cpu(), "a second time" + of);
    }
  }
}

// As attention's backward hands them over: no copy, and the same numbers.
TEST_P(FusedTrainOpsTest, JointLinearsTakeGradientsThatLieSideBySide) {
  const Tensor x = at::randn({2, 5, 8}), weight = at::randn({24, 8}),
               bias = at::randn({24}), up = at::randn({2, 5, 24});
  const auto run = [&](bool beside) {
    const Tensor w = leaf(weight), b = leaf(bias), in = leaf(x);
    const auto outs = joint_linears(in, w.chunk(3), b.chunk(3), at::kBFloat16);
    std::vector<Tensor> grads = up.to(device()).to(at::kBFloat16).chunk(3, -1);
    if (!beside) {
      for (Tensor& grad : grads) grad = grad.contiguous();
    }
    torch::autograd::backward(outs, grads);
    return std::vector<Tensor>{in.grad(), w.grad(), b.grad()};
  };
  const auto actual = run(true), expected = run(false);
  for (size_t i = 0; i < actual.size(); ++i) {
    expect_same(actual[i].cpu(), expected[i].cpu(),
                "tensor " + std::to_string(i));
  }
}

/// Hands nothing back.
class NoGradient : public torch::autograd::Function<NoGradient> {
 public:
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x) {
    return x.clone();
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext*, torch::autograd::variable_list) {
    return {Tensor()};
  }
};

// torch's optimizers leave alone what has no gradient, and decay what has one
// of zeros.
TEST_P(FusedTrainOpsTest, LayersThatNobodyReadGetNoGradient) {
  for (const int64_t width : {16, 64}) {  // 64: a GPU's kernels for narrow rows
    for (const bool joint : {false, true}) {
      const Tensor x = leaf(at::randn({4, 6, width}));
      std::vector<Tensor> weights, biases;
      for (int i = 0; i < 3; ++i) {
        weights.push_back(leaf(at::randn({width, width})));
        biases.push_back(leaf(at::randn({width})));
      }
      const auto outputs = [&] {
        return joint ? joint_linears(x, weights, biases, at::kBFloat16)
                     : linears(x, weights, biases);
      };
      const auto has_gradient = [&](size_t i) {
        EXPECT_EQ(weights[i].grad().defined(), biases[i].grad().defined());
        return weights[i].grad().defined();
      };
      NoGradient::apply(outputs()[0]).sum().backward();
      EXPECT_FALSE(x.grad().defined());
      EXPECT_FALSE(has_gradient(0));

      const auto outs = outputs();
      const Tensor up = at::randn({4, 6, width}).to(at::kBFloat16);
      const Tensor exact_up = up.to(at::kDouble);
      Tensor expected = at::zeros({4, 6, width}, at::kDouble);
      for (const size_t i : {0, 2}) {
        EXPECT_FALSE(has_gradient(i));
        torch::autograd::backward({outs[i]}, {up.to(outs[i].options())},
                                  /*retain_graph=*/true);
        ASSERT_TRUE(has_gradient(i));
        expect_close(biases[i].grad().cpu(), exact_up.flatten(0, 1).sum(0),
                     1e-5, "bias");
        expected += at::matmul(exact_up, exact(weights[i].cpu()).detach());
      }
      EXPECT_FALSE(has_gradient(1));
      expect_close(x.grad().cpu(), expected, 8e-3, "x");
    }
  }
}

TEST(EmptyLikeHeads, LieBesideEachOtherAsTheInputsDo) {
  const int64_t batch = 2, n = 5, heads = 3, width = 4;
  const auto split = [&](const Tensor& x) {
    return x.view({batch, n, heads, width}).transpose(1, 2);
  };
  const auto joint = at::randn({batch, n, 3 * heads * width}).chunk(3, -1);
  const auto grads =
      empty_like_heads(split(joint[0]), split(joint[1]), split(joint[2]));
  for (size_t i = 0; i < grads.size(); ++i) {
    EXPECT_EQ(grads[i].sizes(), split(joint[i]).sizes());
    EXPECT_EQ(grads[i].strides(), split(joint[i]).strides());
    EXPECT_TRUE(grads[i].is_alias_of(grads[0]));
    EXPECT_EQ(grads[i].storage_offset(),
              static_cast<int64_t>(i) * heads * width);
  }
  // Two of them only, or in another order: each its own.
  for (const auto& [k, v] : {std::pair(2, 1), std::pair(1, 1)}) {
    const auto alone =
        empty_like_heads(split(joint[0]), split(joint[k]), split(joint[v]));
    EXPECT_FALSE(alone[1].is_alias_of(alone[0]));
    EXPECT_FALSE(alone[2].is_alias_of(alone[1]));
  }
}

LUNA_EVERY_DEVICE(FusedTrainOpsTest);

}  // namespace
}  // namespace luna::ops
