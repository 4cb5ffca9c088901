#include "luna/distill/row_loss.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

namespace luna::distill {
namespace {

constexpr int64_t kBatch = 3, kHeads = 2, kLength = 7, kWidth = 4, kMaps = 5;

struct Problem {
  Rows rows{};
  std::vector<int64_t> lengths{7, 4, 1};
};

Problem make_problem(bool masked) {
  at::manual_seed(3);
  const auto numbers = [](int64_t width) {
    return at::randn({kBatch, kHeads, kLength, width}, at::kDouble);
  };
  Problem problem;
  problem.rows = {.query = numbers(kWidth) * 2,
                  .key = numbers(kWidth) * 2,
                  .query_map = numbers(kMaps).relu().requires_grad_(),
                  .key_map = numbers(kMaps).relu().requires_grad_()};
  if (masked) {
    problem.rows.mask = at::arange(kLength).lt(
        at::tensor(problem.lengths, at::kLong).unsqueeze(1));
  } else {
    problem.lengths = {kLength, kLength, kLength};
  }
  return problem;
}

/// The loss by its definition, number by number, and of each head.
struct Plain {
  double loss = 0;
  std::vector<double> divergence = std::vector<double>(kHeads, 0.0);
};

Plain plain(const Problem& problem) {
  const Rows& r = problem.rows;
  const auto dot = [](const at::Tensor& a, const at::Tensor& b) {
    return (a.detach() * b.detach()).sum().item<double>();
  };
  Plain result;
  double count = 0;
  for (int64_t b = 0; b < kBatch; ++b) {
    const int64_t n = problem.lengths[b];
    for (int64_t h = 0; h < kHeads; ++h) {
      for (int64_t i = 0; i < n; ++i, ++count) {
        std::vector<double> teacher(n), student(n);
        double teacher_sum = 0, student_sum = 0;
        for (int64_t j = 0; j < n; ++j) {
          teacher[j] = std::exp(dot(r.query[b][h][i], r.key[b][h][j]) /
                                std::sqrt(double(kWidth)));
          student[j] = dot(r.query_map[b][h][i], r.key_map[b][h][j]);
          teacher_sum += teacher[j];
          student_sum += student[j];
        }
        for (int64_t j = 0; j < n; ++j) {
          const double t = teacher[j] / teacher_sum;
          const double share = student_sum > 0 ? student[j] / student_sum : 0.0;
          const double loss = -t * std::log(std::max(share, 1e-9));
          result.loss += loss;
          result.divergence[h] += loss + t * std::log(t);
        }
      }
    }
  }
  result.loss /= count;
  for (double& head : result.divergence) head /= count / kHeads;
  return result;
}

TEST(RowLoss, IsTheFormulaWhateverTheBlock) {
  for (const bool masked : {false, true}) {
    Problem problem = make_problem(masked);
    const Plain expected = plain(problem);
    for (const int64_t block : {1, 3, 7, 100}) {
      SCOPED_TRACE(::testing::Message() << masked << " " << block);
      problem.rows.block = block;
      EXPECT_NEAR(row_cross_entropy(problem.rows).item<double>(), expected.loss,
                  1e-12);
      const at::Tensor heads = row_divergence(problem.rows);
      for (int64_t h = 0; h < kHeads; ++h) {
        EXPECT_NEAR(heads[h].item<double>(), expected.divergence[h], 1e-12);
      }
    }
  }
}

/// By differences of the formula; entries of padding have none.
TEST(RowLoss, GradientIsTheFormulas) {
  for (const bool masked : {false, true}) {
    Problem problem = make_problem(masked);
    problem.rows.block = 3;
    // Away from the kinks: shares at the floor are another test's.
    for (at::Tensor* map : {&problem.rows.query_map, &problem.rows.key_map}) {
      *map = (map->detach() + 0.3).requires_grad_();
    }
    row_cross_entropy(problem.rows).backward();
    for (at::Tensor* map : {&problem.rows.query_map, &problem.rows.key_map}) {
      const at::Tensor gradient = map->grad();
      const at::Tensor flat = map->detach().view(-1);
      for (int64_t i = 0; i < flat.numel(); i += 3) {
        const double was = flat[i].item<double>(), step = 1e-6;
        flat[i].fill_(was + step);
        const double up = plain(problem).loss;
        flat[i].fill_(was - step);
        const double down = plain(problem).loss;
        flat[i].fill_(was);
        EXPECT_NEAR(gradient.view(-1)[i].item<double>(),
                    (up - down) / (2 * step), 1e-8)
            << i;
      }
    }
  }
}

// With a floor in the gradient it is that of log(share + f), here by autograd
// from the definition; some shares are 0.
TEST(RowLoss, AFloorGivesEveryShareAGradient) {
  constexpr double kFloor = 1e-2;
  for (const bool masked : {false, true}) {
    Problem problem = make_problem(masked);
    Rows& rows = problem.rows;
    const double loss = row_cross_entropy(rows).item<double>();
    rows.gradient_floor = kFloor;
    rows.block = 3;
    const at::Tensor with_floor = row_cross_entropy(rows);
    EXPECT_NEAR(with_floor.item<double>(), loss, 1e-12);
    with_floor.backward();

    const at::Tensor q = rows.query_map.detach().requires_grad_();
    const at::Tensor k = rows.key_map.detach().requires_grad_();
    at::Tensor scores = at::matmul(rows.query, rows.key.transpose(-1, -2)) /
                        std::sqrt(double(kWidth));
    at::Tensor kernel = at::matmul(q, k.transpose(-1, -2));
    at::Tensor real = at::ones({kBatch, 1, kLength, 1}, at::kDouble);
    if (masked) {
      const at::Tensor keys = rows.mask->unsqueeze(1).unsqueeze(1);
      scores = scores.masked_fill(keys.logical_not(), -1e30);
      kernel = kernel * keys;
      real = rows.mask->unsqueeze(1).unsqueeze(-1).to(at::kDouble);
    }
    ASSERT_GT(kernel.eq(0).sum().item<int64_t>(), 0);
    // Rows without any similarity have no gradient even so.
    const at::Tensor sum = kernel.sum(-1, true);
    const at::Tensor share = kernel / sum.clamp_min(1e-30);
    const at::Tensor terms =
        at::softmax(scores, -1) * (share + kFloor).log() * real * sum.gt(0);
    (-terms.sum() / (real.sum() * kHeads)).backward();
    EXPECT_LT((rows.query_map.grad() - q.grad()).norm().item<double>(), 1e-12);
    EXPECT_LT((rows.key_map.grad() - k.grad()).norm().item<double>(), 1e-12);
  }
}

TEST(RowLoss, WhatIsBelowTheFloorHasNoGradient) {
  // One query, two keys: the second has nothing in common with the query.
  Rows rows{.query = at::zeros({1, 1, 1, 2}, at::kDouble),
            .key = at::zeros({1, 1, 2, 2}, at::kDouble)};
  rows.query_map = at::tensor({1.0, 0.0}).view({1, 1, 1, 2}).to(at::kDouble);
  rows.query = rows.query.expand({1, 1, 1, 2});
  rows.key_map = at::tensor({1.0, 0.0, 0.0, 1.0}).view({1, 1, 2, 2});
  rows.key_map = rows.key_map.to(at::kDouble).requires_grad_();
  const at::Tensor loss = row_cross_entropy(rows);
  // Half of the teacher's weight on each.
  EXPECT_NEAR(loss.item<double>(), -0.5 * std::log(1e-9), 1e-12);
  loss.backward();
  // The first key's share is 1 already: log p = log K - log z stands still but
  // for the half that counts, 1/2 (1/z - 1/K) = 0 with K = z = 1; the second
  // gets 1/2 / z along the query's features from the sum alone.
  const at::Tensor gradient = rows.key_map.grad().view({2, 2});
  EXPECT_NEAR(gradient[0][0].item<double>(), 0.0, 1e-12);
  EXPECT_NEAR(gradient[1][0].item<double>(), 0.5, 1e-12);
  EXPECT_EQ(gradient[1][1].item<double>(), 0.0);
}

}  // namespace
}  // namespace luna::distill
