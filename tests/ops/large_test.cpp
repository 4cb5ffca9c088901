// More than 2^31 elements in one tensor, where a GPU has the memory for it.

#include <luna/ops/universal_attention.h>

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

namespace luna::testing {
namespace {

using at::Tensor;

Tensor tokens(const Tensor& x, int64_t begin, int64_t end) {
  return x.slice(2, begin, end).detach();
}

// As expect_close, on the device: these are too many for the CPU.
void expect_near(const Tensor& actual, const Tensor& expected, double tolerance,
                 const char* what) {
  const Tensor want = expected.detach().to(at::kFloat);
  const Tensor error = (actual.detach().to(at::kFloat) - want).norm();
  EXPECT_LE((error / want.norm()).item<double>(), tolerance) << what;
}

// Sums over all tokens are sums of those over parts of them, and rows of the
// output depend on nothing else: so the op on parts, each short, is the
// reference. 8 heads of 64 and 2^22 + 1,000 tokens: 2^31 is within them.
TEST(Large, MoreThanTwoToThe31Elements) {
  if (!at::globalContext().hasCUDA()) GTEST_SKIP() << "no CUDA device";
  constexpr int64_t kHeads = 8, kWidth = 64, kTokens = (1 << 22) + 1000;
  constexpr int64_t kPart = 1 << 20;
  static_assert(kHeads * kWidth * kTokens > int64_t{1} << 31);
  const auto options =
      at::TensorOptions().device(at::kCUDA).dtype(at::kBFloat16);
  const auto wide = options.dtype(at::kFloat);
  at::manual_seed(5);
  std::vector<Tensor> x;  // query, key, value, upstream
  try {
    for (int i = 0; i < 4; ++i) {
      x.push_back(at::randn({1, kHeads, kTokens, kWidth}, options));
    }
    // Room for the output and three gradients.
    at::empty({4, kHeads, kTokens, kWidth}, options);
  } catch (const c10::OutOfMemoryError&) {
    GTEST_SKIP() << "too little memory on the GPU";
  }
  const ops::FeatureMapParameters p{
      at::randn({8, kWidth}, wide) / 8,      at::randn({8}, wide) / 10,
      at::rand({8, 64}, wide) * 2 - 1,       at::rand({8, 64}, wide) * 2 - 1,
      (at::rand({8, 64}, wide) * 2 - 1) / 8, (at::rand({8}, wide) * 2 - 1) / 8};
  for (int i = 0; i < 3; ++i) x[i].requires_grad_();
  const auto [output, state] = ops::universal_attention(x[0], x[1], x[2], p);
  const auto gradients =
      torch::autograd::grad({output}, {x[0], x[1], x[2]}, {x[3]});

  const auto from = [](const Tensor& start) {
    ops::UniversalAttentionOptions options;
    options.state = start;
    return options;
  };
  const auto parts = [&](const auto& work) {
    for (int64_t t = 0; t < kTokens; t += kPart) {
      work(t, std::min(t + kPart, kTokens));
    }
  };
  Tensor sums = at::zeros({1, kHeads, 64, kWidth + 1}, wide);
  const Tensor no_tokens = tokens(x[0], 0, 0);
  {
    const c10::NoGradGuard no_grad;
    parts([&](int64_t begin, int64_t end) {
      sums = std::get<1>(
          ops::universal_attention(no_tokens, tokens(x[1], begin, end),
                                   tokens(x[2], begin, end), p, from(sums)));
    });
  }
  expect_near(state, sums, 1e-3, "state");
  Tensor grad_sums = at::zeros_like(sums);
  parts([&](int64_t begin, int64_t end) {
    const Tensor start = sums.detach().requires_grad_();
    const Tensor q = tokens(x[0], begin, end).requires_grad_();
    const Tensor want = std::get<0>(
        ops::universal_attention(q, no_tokens, no_tokens, p, from(start)));
    const auto g =
        torch::autograd::grad({want}, {q, start}, {tokens(x[3], begin, end)});
    expect_near(tokens(output, begin, end), want, 3e-3, "output");
    expect_near(tokens(gradients[0], begin, end), g[0], 1e-2, "query");
    grad_sums += g[1];
  });
  parts([&](int64_t begin, int64_t end) {
    const Tensor k = tokens(x[1], begin, end).requires_grad_();
    const Tensor v = tokens(x[2], begin, end).requires_grad_();
    const Tensor end_state =
        std::get<1>(ops::universal_attention(no_tokens, k, v, p));
    const auto g = torch::autograd::grad({end_state}, {k, v}, {grad_sums});
    expect_near(tokens(gradients[1], begin, end), g[0], 1e-2, "key");
    expect_near(tokens(gradients[2], begin, end), g[1], 1e-2, "value");
  });
}

}  // namespace
}  // namespace luna::testing
