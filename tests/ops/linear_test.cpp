// Linear layers, alone and several of one input, against float64.

#include "ops/linear.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <string>
#include <utility>
#include <vector>

#include "support/train_op.h"

namespace luna::ops {
namespace {

using at::Tensor;
using luna::testing::exact;
using luna::testing::expect_close;
using luna::testing::expect_same;

class LinearOp : public luna::testing::TrainOpTest {};

TEST_P(LinearOp, GradientsAreExact) {
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

TEST_P(LinearOp, IsThatOfAutocast) {
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

TEST_P(LinearOp, JoinedPartsStartAligned) {
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

TEST_P(LinearOp, JointLinearsAreThoseOfEachLayer) {
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
TEST_P(LinearOp, JointLinearsOfNarrowRowsAreThoseOfEachLayer) {
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
TEST_P(LinearOp, JointLinearsTakeGradientsThatLieSideBySide) {
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
TEST_P(LinearOp, LayersThatNobodyReadGetNoGradient) {
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

LUNA_EVERY_DEVICE(LinearOp);

}  // namespace
}  // namespace luna::ops
