// Linear layers of a decoding step: the formula, whichever kernel computes it.

#include "ops/token_linear.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <cmath>

#include "support/cases.h"
#include "support/check.h"

namespace luna::testing {
namespace {

class TokenLinear : public OpTest {};
LUNA_ALL_CASES(TokenLinear);

at::Tensor formula(const at::Tensor& x, const at::Tensor& weight,
                   const at::Tensor& bias, bool relu) {
  const auto y = at::matmul(x.to(at::kCPU, at::kDouble),
                            weight.to(at::kCPU, at::kDouble).t()) +
                 bias.to(at::kCPU, at::kDouble);
  return relu ? y.clamp_min(0) : y;
}

TEST_P(TokenLinear, MatchesTheFormula) {
  const c10::NoGradGuard no_grad;
  at::manual_seed(7);
  const auto there =
      at::TensorOptions().dtype(GetParam().dtype).device(GetParam().device);
  // Rows in part of a tile and in several; depth for one block, for clusters
  // of two and four, with warps that have nothing and that have several turns;
  // outputs that end inside a block; what torch's product takes over.
  for (auto [in, out] : {std::pair{512, 512},
                         {512, 1536},
                         {2048, 512},
                         {32, 8},
                         {96, 40},
                         {1024, 24},
                         {3072, 64},
                         {640, 8000},
                         {33, 5}}) {
    for (const int64_t rows :
         {1, 7, 8, 9, 16, 17, 31, 32, 33, 40, 63, 64, 65}) {
      if (out == 8000 && rows != 32) continue;
      for (const bool relu : {false, true}) {
        SCOPED_TRACE(::testing::Message() << rows << " x " << in << " to "
                                          << out << (relu ? ", relu" : ""));
        const auto x = at::randn({rows, in}).to(there);
        const auto weight = (at::randn({out, in}) / std::sqrt(in)).to(there);
        const auto bias = at::randn({out}).to(there);
        const auto y = ops::token_linear(x, weight, bias, relu);
        EXPECT_EQ(y.scalar_type(), GetParam().dtype);
        expect_close(y, formula(x, weight, bias, relu), GetParam().agreement(),
                     "output");
        expect_same(y, ops::token_linear(x, weight, bias, relu), "again");
      }
    }
  }
}

// What the kernel does not take goes to torch's product: inputs that do not lie
// in whole words, and gradients.
TEST_P(TokenLinear, OthersAreProductsToo) {
  at::manual_seed(8);
  const auto there =
      at::TensorOptions().dtype(GetParam().dtype).device(GetParam().device);
  const auto wide = at::randn({4, 65}).to(there);
  const auto x = wide.narrow(1, 1, 64), bias = at::randn({16}).to(there);
  auto weight = (at::randn({16, 64}) / 8).to(there);
  const auto want = formula(x, weight, bias, false);
  expect_close(ops::token_linear(x, weight, bias), want, GetParam().agreement(),
               "output");
  weight.requires_grad_();
  ops::token_linear(x.contiguous(), weight, bias).sum().backward();
  expect_close(weight.grad()[3], x.sum(0), 4 * GetParam().agreement(),
               "gradient");
}

TEST_P(TokenLinear, RefusesWhatDoesNotGoTogether) {
  const c10::NoGradGuard no_grad;
  const auto there =
      at::TensorOptions().dtype(GetParam().dtype).device(GetParam().device);
  const auto x = at::ones({4, 64}, there), bias = at::ones({16}, there);
  EXPECT_THROW(ops::token_linear(x, at::ones({16, 32}, there), bias),
               c10::Error);
  EXPECT_THROW(ops::token_linear(x, at::ones({24, 64}, there), bias),
               c10::Error);
}

TEST_P(TokenLinear, KeepsWhatIsNoNumber) {
  const c10::NoGradGuard no_grad;
  const auto there =
      at::TensorOptions().dtype(GetParam().dtype).device(GetParam().device);
  auto x = at::ones({3, 64}, there);
  x[1][5] = NAN;
  const auto y = ops::token_linear(x, at::ones({16, 64}, there),
                                   at::zeros({16}, there), true);
  EXPECT_TRUE(y[1].isnan().all().item<bool>());
  EXPECT_EQ(y[0].isnan().sum().item<int64_t>(), 0);
}

}  // namespace
}  // namespace luna::testing
