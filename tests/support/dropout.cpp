#include "support/dropout.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

namespace luna::testing {

using at::Tensor;

void make_values_one_hot(Problem& problem) {
  Tensor& value = problem.arguments["value"];
  ASSERT_EQ(value.size(2), value.size(3));
  value = at::eye(value.size(3), at::kDouble).expand(value.sizes()).clone();
}

Arguments with_seed(const Arguments& arguments, int64_t first, int64_t second) {
  Arguments result = arguments;
  result["seed"] = at::tensor({first, second}, arguments.at("seed").options());
  return result;
}

void expect_dropout_drops_or_scales(const Problem& dropped,
                                    const Problem& exact, double p) {
  const Tensor full = exact.op(exact.arguments)[0] / (1 - p);
  ASSERT_GT(full.min().item<double>(), 0.0);
  const int64_t seeds = 200;
  Tensor kept_count = at::zeros_like(full);
  double equal_heads = 0, equal_rows = 0, equal_samples = 0;
  for (int64_t seed = 0; seed < seeds; ++seed) {
    const Tensor output =
        dropped.op(with_seed(dropped.arguments, 1234567 * seed, 5))[0];
    const Tensor kept = output != 0;
    expect_close(output, full * kept, 1e-12, "kept probabilities");
    if (::testing::Test::HasFailure()) return;
    kept_count += kept;
    auto share = [&](int64_t dim) {
      const int64_t half = kept.size(dim) / 2;
      return (kept.narrow(dim, 0, half) == kept.narrow(dim, half, half))
          .to(at::kDouble)
          .mean()
          .item<double>();
    };
    equal_samples += share(0) / seeds;
    equal_heads += share(1) / seeds;
    equal_rows += share(2) / seeds;
  }
  // Standard deviations: each entry's share sqrt(p(1-p)/seeds), and less by
  // the root of their number for the mean of all and for the equal pairs.
  const Tensor share = kept_count / seeds;
  const double deviation = std::sqrt(p * (1 - p) / seeds);
  EXPECT_LT((share - (1 - p)).abs().max().item<double>(), 6 * deviation);
  const double of_all = 6 * deviation / std::sqrt(full.numel());
  EXPECT_NEAR(share.mean().item<double>(), 1 - p, of_all);
  const double by_chance = p * p + (1 - p) * (1 - p);
  EXPECT_NEAR(equal_samples, by_chance, 2 * of_all) << "between samples";
  EXPECT_NEAR(equal_heads, by_chance, 2 * of_all) << "between heads";
  EXPECT_NEAR(equal_rows, by_chance, 2 * of_all) << "between queries";
}

void expect_pure_function_of_the_seed(const Case& c, const Problem& dropped) {
  const Arguments arguments = stored(dropped.arguments, c);
  at::manual_seed(1);
  const Results first = evaluate(dropped.op, arguments);
  at::manual_seed(2);
  expect_same(evaluate(dropped.op, arguments), first);
  const Tensor drawn_after = at::rand({4});
  at::manual_seed(2);
  expect_same(at::rand({4}), drawn_after, "torch's own random numbers");
  for (const auto& [a, b] : {std::pair{0, 0}, {1, 0}, {0, 1}, {-1, 7}}) {
    const Tensor other = dropped.op(with_seed(arguments, a, b))[0];
    EXPECT_GT(relative_error(other, first.outputs[0]), 1e-2) << a << ", " << b;
    const Tensor swapped = dropped.op(with_seed(arguments, b + 11, a))[0];
    EXPECT_GT(relative_error(other, swapped), 1e-2) << a << ", " << b;
  }
}

}  // namespace luna::testing
