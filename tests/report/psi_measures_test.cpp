#include "luna/report/psi_measures.h"

#include <gtest/gtest.h>

#include <cmath>

namespace luna::report {
namespace {

/// As likely as each other: mean 0, variance 1, fourth moment 9 / 5.
std::vector<double> samples() {
  constexpr int kCount = 401;
  std::vector<double> u;
  for (int i = 0; i < kCount; ++i) {
    u.push_back(std::sqrt(3) * (2.0 * i / (kCount - 1) - 1));
  }
  return u;
}

template <class F>
std::vector<double> sampled(F f) {
  std::vector<double> values;
  for (const double u : samples()) values.push_back(f(u));
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
  EXPECT_NEAR(effective_channels({kRamp, times(3, kRamp)}), 1, 1e-12);
  // Orthogonal and of equal size: u and 1, since u has mean 0 and variance 1.
  EXPECT_NEAR(effective_channels({kRamp, kOne}), 2, 1e-3);
  EXPECT_NEAR(effective_channels({kRamp, kOne, kZero}), 2, 1e-3);
  // Eigenvalues 1 and 4: 25 / 17.
  EXPECT_NEAR(effective_channels({times(2, kRamp), kOne}), 25.0 / 17, 5e-3);
  EXPECT_EQ(effective_channels({kZero}), 0);
  EXPECT_EQ(effective_channels({}), 0);
}

TEST(KernelAlignment, KnowsEqualAndUnrelatedKernels) {
  const auto alignment = [](const Functions& a, const Functions& b) {
    return kernel_alignment(kernel_of(a), kernel_of(b));
  };
  EXPECT_NEAR(alignment({kRamp, kSquare}, {kRamp, kSquare}), 1, 1e-12);
  // Order and size do not matter, nor does a turn of the functions.
  EXPECT_NEAR(
      alignment({kRamp, kSquare}, {times(-2, kSquare), times(2, kRamp)}), 1,
      1e-12);
  EXPECT_NEAR(alignment({kRamp}, {kSquare}), 0, 1e-12);
  EXPECT_NEAR(alignment({kRamp}, {kOne}), 0, 1e-12);
  EXPECT_EQ(alignment({kRamp}, {kZero}), 0);
  // Centred: u has variance 1, u^2 has 9/5 - 1 = 4/5. The kernels' products
  // are then 1 of (u, u), and 1 and 16/25 of the squares of the sum's.
  EXPECT_NEAR(alignment({kRamp}, {kRamp, kSquare}), 1 / std::sqrt(1.64), 5e-3);
}

TEST(Kernels, AreWhatTheyAreCalled) {
  const std::vector<double> wide = times(5, samples());
  const Kernel bell = bell_kernel(wide), line = straight_kernel(wide);
  const double variance =
      25 * 402.0 / 400;  // of 401 even steps: (n + 1) / (n - 1) of the limit
  for (const auto& [i, j] : {std::pair(0, 0), {0, 160}, {100, 130}, {80, 3}}) {
    const double distance = wide[i] - wide[j];
    EXPECT_NEAR(bell[i][j], std::exp(-distance * distance / (2 * variance)),
                1e-12);
    EXPECT_DOUBLE_EQ(line[i][j], wide[i] * wide[j]);
  }
  // Of a u that never changes: no division by its spread.
  EXPECT_EQ(bell_kernel({2, 2})[0][1], 1);
}

}  // namespace
}  // namespace luna::report
