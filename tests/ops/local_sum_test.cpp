// What neighbours have: sums written out, torch's convolutions, and what the
// op refuses.

#include "ops/local_sum.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <optional>

#include "support/check.h"
#include "support/convolution.h"
#include "support/errors.h"
#include "support/filled_memory.h"
#include "support/random.h"

namespace luna::testing {
namespace {

using at::Tensor;

/// Lines one after the other, against each of them alone.
Problem packed_problem(const std::vector<int64_t>& lengths, int64_t width,
                       int64_t taps, at::ScalarType dtype) {
  const Tensor starts = cumulative(lengths, dtype);
  Problem problem =
      local_sum_problem({1, starts[-1].item<int64_t>(), width}, {1, taps});
  problem.arguments["starts"] = starts;
  problem.op = [](const Arguments& a) -> Tensors {
    return {ops::local_sum(a.at("x"), a.at("weight"), 0, a.at("starts"))};
  };
  problem.reference = [lengths](const Arguments& a) -> Tensors {
    Tensors parts;
    int64_t start = 0;
    for (const int64_t length : lengths) {
      if (length == 0) continue;
      parts.push_back(
          convolved(a.at("x").narrow(1, start, length), a.at("weight"), 0));
      start += length;
    }
    return {at::cat(parts, 1)};
  };
  return problem;
}

/// One channel, in numbers that every dtype has.
struct Written {
  int64_t rows, columns;  ///< of the taps, of the picture
  std::vector<double> x, weight, out;
  std::vector<double> upstream, x_gradient, weight_gradient;
};

class LocalSumOp : public OpTest {
 protected:
  void expect_written(const Written& written) const {
    const auto there = [](const std::vector<double>& numbers,
                          at::IntArrayRef sizes, at::ScalarType dtype) {
      return at::tensor(numbers, at::kDouble)
          .view(sizes)
          .to(at::Device(GetParam().device), dtype);
    };
    const auto expect = [](const Tensor& actual,
                           const std::vector<double>& expected,
                           const char* what) {
      expect_same(actual.detach().to(at::kDouble).flatten(),
                  at::tensor(expected, at::kDouble), what);
    };
    const auto dtype = GetParam().dtype, wide = GetParam().wide_dtype();
    const Tensor x = there(written.x, {1, -1, 1}, dtype).requires_grad_();
    const Tensor weight =
        there(written.weight, {1, written.rows, -1}, wide).requires_grad_();
    const Tensor out = ops::local_sum(x, weight, written.columns);
    ASSERT_EQ(out.sizes(), x.sizes());
    EXPECT_EQ(out.scalar_type(), dtype);
    const auto gradients = torch::autograd::grad(
        {out}, {x, weight}, {there(written.upstream, {1, -1, 1}, dtype)});
    EXPECT_EQ(gradients[1].scalar_type(), wide);
    expect(out, written.out, "output");
    expect(gradients[0], written.x_gradient, "gradient of x");
    expect(gradients[1], written.weight_gradient, "gradient of weight");
  }

 private:
  const FilledMemory filled_;
};
LUNA_ALL_CASES(LocalSumOp);

TEST_P(LocalSumOp, IsTheSumOnALine) {
  expect_written({.rows = 1,
                  .columns = 0,
                  .x = {1, 2, 3, 5},
                  .weight = {1, 10, 4},
                  // 10 + 8, 1 + 20 + 12, 2 + 30 + 20, 3 + 50
                  .out = {18, 33, 52, 53},
                  .upstream = {1, 0, 2, 0},
                  .x_gradient = {10, 4 + 2, 20, 8},
                  .weight_gradient = {4, 1 + 6, 2 + 10}});
}

TEST_P(LocalSumOp, IsTheSumOnASquare) {
  expect_written({.rows = 3,
                  .columns = 3,
                  .x = {1, 2, 3,  //
                        4, 5, 6,  //
                        7, 8, 9},
                  .weight = {1, 2, 0,   //
                             -1, 3, 1,  //
                             0, -2, 4},
                  // The first: 3 * 1 + 1 * 2 - 2 * 4 + 4 * 5
                  .out = {17, 22, -5,  //
                          37, 42, 3,   //
                          37, 40, 36},
                  .upstream = {1, 0, 0,  //
                               0, 0, 2,  //
                               0, 1, 0},
                  .x_gradient = {3, 3, 4,   //
                                 -1, 4, 6,  //
                                 -1, 3, -3},
                  .weight_gradient = {8, 11, 6,    //
                                      17, 21, 11,  //
                                      16, 22, 5}});
}

TEST_P(LocalSumOp, MatchesTorchsConvolutionOnLines) {
  const auto expect = [](int64_t batch, int64_t n, int64_t width,
                         int64_t taps) {
    SCOPED_TRACE(::testing::Message()
                 << n << " x " << width << ", " << taps << " taps");
    expect_matches(GetParam(), local_sum_problem({batch, n, width}, {1, taps}));
  };
  for (const int64_t width : {1, 3, 64, 70}) {
    for (const int64_t n : {1, 2, 5, 130}) {
      for (const int64_t taps : {1, 3, 5, 7}) expect(2, n, width, taps);
    }
  }
  expect(3, 4100, 66, 5);
  // Of tokens that stand alone: four vectors and one, of 16, 8 and 4 floats.
  for (const int64_t width : {88, 152}) expect(2, 11, width, 5);
}

TEST_P(LocalSumOp, MatchesTorchsConvolutionOnSquares) {
  const auto expect = [](int64_t rows, int64_t columns, int64_t width,
                         at::IntArrayRef taps) {
    SCOPED_TRACE(::testing::Message() << rows << " x " << columns << " x "
                                      << width << ", taps " << taps);
    expect_matches(GetParam(), local_sum_problem({2, rows * columns, width},
                                                 taps, columns));
  };
  for (const int64_t width : {3, 70}) {
    for (const int64_t columns : {4, 7}) {
      for (const int64_t rows : {1, 2, 5}) {
        for (const int64_t taps : {1, 3, 5}) {
          expect(rows, columns, width, {taps, taps});
        }
      }
    }
  }
  expect(5, 4, 64, {1, 5});
  expect(5, 4, 64, {5, 3});
  expect(20, 33, 65, {5, 5});
}

TEST_P(LocalSumOp, PackedEqualsSeparate) {
  for (const auto dtype : {at::kInt, at::kLong}) {
    for (const int64_t width : {3, 64}) {
      for (const int64_t taps : {1, 3, 7}) {
        SCOPED_TRACE(::testing::Message() << width << ", " << taps << " taps, "
                                          << at::toString(dtype));
        expect_matches(
            GetParam(),
            packed_problem({0, 1, 70, 0, 0, 2, 129, 5, 0}, width, taps, dtype));
      }
    }
  }
}

TEST_P(LocalSumOp, SameBitsTwice) {
  for (const Problem& problem :
       {local_sum_problem({4, 999, 70}, {1, 7}),
        local_sum_problem({4, 660, 70}, {5, 5}, 33),
        packed_problem({500, 0, 1, 700}, 64, 3, at::kInt)}) {
    const Arguments arguments = stored(problem.arguments, GetParam());
    const auto run = [&] {
      return evaluate(problem.op, arguments, {GetParam().dtype});
    };
    expect_same(run(), run());
  }
}

TEST_P(LocalSumOp, NothingGivesNothing) {
  for (const Problem& problem : {local_sum_problem({0, 6, 3}, {1, 3}),
                                 local_sum_problem({2, 0, 3}, {1, 3}),
                                 local_sum_problem({0, 6, 3}, {3, 3}, 3),
                                 local_sum_problem({2, 0, 3}, {3, 3}, 3),
                                 packed_problem({0, 0}, 3, 3, at::kLong)}) {
    const auto sizes = problem.arguments.at("x").sizes();
    SCOPED_TRACE(::testing::Message() << sizes);
    const auto results =
        evaluate(problem.op, stored(problem.arguments, GetParam()));
    EXPECT_EQ(results.outputs[0].sizes(), sizes);
    EXPECT_EQ(results.outputs[0].scalar_type(), GetParam().dtype);
    EXPECT_EQ(results.gradients.at("x").sizes(), sizes);
    EXPECT_FALSE(results.gradients.at("weight").any().item<bool>());
  }
}

// Channels among others, sequences side by side, gradients with their own
// strides.
TEST_P(LocalSumOp, TakesViews) {
  const std::vector<std::function<Tensor(const Tensor&)>> views{
      [](const Tensor& x) { return x.narrow(2, 3, 64); },
      [](const Tensor& x) { return x.transpose(0, 1).narrow(2, 3, 64); }};
  for (const int64_t columns : {0, 3}) {
    for (const auto& view : views) {
      Problem problem =
          local_sum_problem({6, 12, 70}, {columns > 0 ? 3 : 1, 3});
      problem.op = [=](const Arguments& a) -> Tensors {
        return {ops::local_sum(view(a.at("x")), a.at("weight").narrow(0, 0, 64),
                               columns)
                    .transpose(1, 2)};
      };
      problem.reference = [=](const Arguments& a) -> Tensors {
        return {
            convolved(view(a.at("x")), a.at("weight").narrow(0, 0, 64), columns)
                .transpose(1, 2)};
      };
      expect_matches(GetParam(), problem);
    }
  }
}

// Contiguous, but not where pairs of numbers may be read; one token each, whose
// stride says nothing. And the gradient begins at an odd number.
TEST_P(LocalSumOp, TakesOddPlaces) {
  const std::vector<std::function<Tensor(const Tensor&)>> views{
      [](const Tensor& x) {
        return x.flatten().narrow(0, 1, 6 * 12 * 64).view({6, 12, 64});
      },
      [](const Tensor& x) {
        return x.select(1, 0)
            .narrow(1, 0, 64)
            .contiguous()
            .unsqueeze(1)
            .transpose(1, 2)
            .contiguous()
            .transpose(1, 2);
      }};
  for (const auto& view : views) {
    Problem problem = local_sum_problem({6, 12, 70}, {1, 3});
    const auto after = [](const Tensor& y) -> Tensors {
      return {at::cat({y.new_zeros({7}), y.flatten()})};
    };
    problem.op = [=](const Arguments& a) {
      return after(
          ops::local_sum(view(a.at("x")), a.at("weight").narrow(0, 0, 64)));
    };
    problem.reference = [=](const Arguments& a) {
      return after(
          convolved(view(a.at("x")), a.at("weight").narrow(0, 0, 64), 0));
    };
    expect_matches(GetParam(), problem);
  }
}

TEST_P(LocalSumOp, TakesOneGradientForAll) {
  const Arguments a =
      stored(local_sum_problem({2, 9, 64}, {1, 3}).arguments, GetParam());
  const Tensor x = a.at("x").requires_grad_(),
               weight = a.at("weight").requires_grad_();
  const auto gradients = [&](const Tensor& upstream) {
    return torch::autograd::grad({ops::local_sum(x, weight)}, {x, weight},
                                 {upstream});
  };
  const Tensor one = at::ones({1, 1, 1}, x.options().requires_grad(false));
  const auto actual = gradients(one.expand({2, 9, 64})),
             expected = gradients(one.repeat({2, 9, 64}));
  expect_same(actual[0], expected[0], "gradient of x");
  expect_same(actual[1], expected[1], "gradient of weight");
}

TEST_P(LocalSumOp, RejectsMismatchedSizesAndTypes) {
  const auto dtype = GetParam().dtype, wide = GetParam().wide_dtype();
  const auto zeros = [](at::IntArrayRef sizes, at::ScalarType type) {
    return at::zeros(sizes, at::dtype(type).device(GetParam().device));
  };
  const Tensor x = zeros({2, 12, 4}, dtype), packed = zeros({1, 12, 4}, dtype),
               line = zeros({4, 1, 3}, wide), square = zeros({4, 3, 3}, wide),
               starts = zeros({2}, at::kInt);
  starts[1] = 12;
  ASSERT_NO_THROW(ops::local_sum(x, line));
  ASSERT_NO_THROW(ops::local_sum(x, square, 4));
  ASSERT_NO_THROW(ops::local_sum(packed, line, 0, starts));

  const auto refuses = [](const char* what, const Tensor& x,
                          const Tensor& weight, int64_t columns = 0,
                          const std::optional<Tensor>& starts = std::nullopt) {
    SCOPED_TRACE(what);
    expect_error<c10::Error>(
        [&] { ops::local_sum(x, weight, columns, starts); }, {"local_sum"});
  };
  refuses("even taps", x, zeros({4, 1, 2}, wide));
  refuses("even rows of taps", x, zeros({4, 2, 3}, wide), 4);
  refuses("no taps", x, zeros({4, 1, 0}, wide));
  refuses("another width", x, zeros({5, 1, 3}, wide));
  refuses("a weight without rows", x, zeros({4, 3}, wide));
  refuses("x of one sequence", zeros({12, 4}, dtype), line);
  refuses("rows of taps without columns", x, square);
  refuses("a part of a row", x, square, 5);
  refuses("negative columns", x, square, -4);
  refuses("columns with starts", packed, square, 4, starts);
  refuses("starts of several samples", x, line, 0, starts);
  refuses("starts that are no integers", packed, line, 0,
          starts.to(at::kFloat));
  refuses("a weight of another dtype", x,
          line.to(wide == at::kDouble ? at::kFloat : at::kDouble));
  refuses("a weight of half precision", x, line.to(at::kBFloat16));
}

}  // namespace
}  // namespace luna::testing
