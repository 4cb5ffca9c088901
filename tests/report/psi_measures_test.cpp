#include "luna/report/psi_measures.h"

#include <gtest/gtest.h>

#include <cmath>

namespace luna::report {
namespace {

std::vector<double> range() {
  std::vector<double> u;
  for (int i = -80; i <= 80; ++i) u.push_back(i / 20.0);
  return u;
}

template <class F>
std::vector<double> sampled(F f) {
  std::vector<double> values;
  for (const double u : range()) values.push_back(f(u));
  return values;
}

const std::vector<double> kRamp = sampled([](double u) { return u; });
const std::vector<double> kSquare = sampled([](double u) { return u * u; });
const std::vector<double> kZero = sampled([](double) { return 0.0; });
const std::vector<double> kOne = sampled([](double) { return 1.0; });

std::vector<double> times(double scale, std::vector<double> f) {
  for (double& value : f) value *= scale;
  return f;
}

TEST(EffectiveChannels, CountsFunctionsThatDiffer) {
  EXPECT_NEAR(effective_channels({kRamp, times(3, kRamp)}, range()), 1, 1e-12);
  // Orthogonal and of equal size: u and 1, since u has mean 0 and variance 1.
  EXPECT_NEAR(effective_channels({kRamp, kOne}, range()), 2, 1e-3);
  EXPECT_NEAR(effective_channels({kRamp, kOne, kZero}, range()), 2, 1e-3);
  EXPECT_EQ(effective_channels({kZero}, range()), 0);
}

TEST(KernelAlignment, KnowsEqualAndUnrelatedKernels) {
  const auto alignment = [](const Functions& a, const Functions& b) {
    return kernel_alignment(a, b, range());
  };
  EXPECT_NEAR(alignment({kRamp, kSquare}, {kRamp, kSquare}), 1, 1e-12);
  // Order and size do not matter, nor does a turn of the functions.
  EXPECT_NEAR(
      alignment({kRamp, kSquare}, {times(-2, kSquare), times(2, kRamp)}), 1,
      1e-12);
  EXPECT_NEAR(alignment({kRamp}, {kSquare}), 0, 1e-12);
  EXPECT_NEAR(alignment({kRamp}, {kOne}), 0, 1e-12);
  EXPECT_EQ(alignment({kRamp}, {kZero}), 0);
  // Centred: u has variance 1, u^2 has variance 2. The kernels' products are
  // then 1 of (u, u), and 1 and 4 of the squares of the sum's: 1 / sqrt(5).
  EXPECT_NEAR(alignment({kRamp}, {kRamp, kSquare}), 1 / std::sqrt(5), 5e-3);
}

TEST(Kernels, AreWhatTheyAreCalled) {
  const auto kernel = [](const Functions& functions, int i, int j) {
    double sum = 0;
    for (const auto& f : functions) sum += f[i] * f[j];
    return sum;
  };
  const std::vector<double> u = range();
  for (const auto& [i, j] : {std::pair(0, 0), {0, 160}, {100, 130}, {80, 3}}) {
    const double distance = u[i] - u[j];
    EXPECT_NEAR(kernel(bell_kernel(u), i, j),
                std::exp(-distance * distance / 2), 1e-12);
    EXPECT_DOUBLE_EQ(kernel(straight_kernel(u), i, j), u[i] * u[j]);
  }
}

}  // namespace
}  // namespace luna::report
