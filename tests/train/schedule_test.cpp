#include "luna/train/schedule.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/errors.h"

namespace luna::train {
namespace {

constexpr double kPi = 3.14159265358979323846;

// SPEC, the harness of the universal paper: linear warm-up from 0.1 lr, cosine
// to 0.4 lr; Image: lr 1e-3, 1,000 steps of warm-up, 50,000 in all.
const ScheduleConfig kHarness{
    .name = "cosine", .warmup = 1000, .start = 0.1, .floor = 0.4};

double harness(int64_t step) {
  return learning_rate(kHarness, 1e-3, 50000, step);
}

TEST(Schedule, WarmUpIsALineFromItsStartToTheHighestRate) {
  EXPECT_DOUBLE_EQ(harness(0), 1e-4);
  EXPECT_DOUBLE_EQ(harness(500), 5.5e-4);
  EXPECT_DOUBLE_EQ(harness(1000), 1e-3);
  for (int64_t step = 1; step < 1000; ++step) {
    EXPECT_NEAR(harness(step) - harness(step - 1), 9e-7, 1e-15);
  }
}

TEST(Schedule, CosineIsHalfAWaveDownToItsFloor) {
  EXPECT_NEAR(harness(50000), 4e-4, 1e-15);
  EXPECT_NEAR(harness(25500), 7e-4, 1e-15);  // half way: the mean
  for (const int64_t step : {1000, 1001, 17000, 33333, 49999}) {
    const double angle = kPi * static_cast<double>(step - 1000) / 49000;
    EXPECT_NEAR(harness(step), 7e-4 + 3e-4 * std::cos(angle), 1e-15) << step;
  }
  EXPECT_NEAR(harness(60000), 4e-4, 1e-15);  // stays there
}

// SPEC, the nested recipe: inverse square root from 1e-7; Text: lr 5e-5, 8,000
// steps of warm-up.
TEST(Schedule, InverseSquareRootIsTheHighestRateAtTheEndOfTheWarmUp) {
  const ScheduleConfig nested{
      .name = "inverse_sqrt", .warmup = 8000, .start = 1e-7 / 5e-5};
  const auto at = [&](int64_t step) {
    return learning_rate(nested, 5e-5, 20000, step);
  };
  EXPECT_NEAR(at(0), 1e-7, 1e-20);
  EXPECT_NEAR(at(4000), (1e-7 + 5e-5) / 2, 1e-18);
  EXPECT_NEAR(at(8000), 5e-5, 1e-18);
  EXPECT_NEAR(at(32000), 2.5e-5, 1e-18);  // four times as late: half
  EXPECT_NEAR(at(20000) * std::sqrt(20000.0), 5e-5 * std::sqrt(8000.0), 1e-15);
}

TEST(Schedule, InverseSquareRootStopsAtItsFloor) {
  const ScheduleConfig schedule{
      .name = "inverse_sqrt", .warmup = 100, .floor = 0.25};
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 2.0, 9000, 900), 2.0 / 3);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 2.0, 9000, 6400), 0.5);
}

// SPEC, fine-tuning: polynomial decay to 0.
TEST(Schedule, PolynomialFallsToItsFloor) {
  const ScheduleConfig line{.name = "polynomial", .warmup = 10};
  EXPECT_DOUBLE_EQ(learning_rate(line, 1e-5, 110, 10), 1e-5);
  EXPECT_DOUBLE_EQ(learning_rate(line, 1e-5, 110, 35), 7.5e-6);
  EXPECT_DOUBLE_EQ(learning_rate(line, 1e-5, 110, 110), 0.0);
  const ScheduleConfig square{.name = "polynomial", .floor = 0.2, .power = 2.0};
  EXPECT_DOUBLE_EQ(learning_rate(square, 1.0, 100, 50), 0.2 + 0.8 * 0.25);
  EXPECT_DOUBLE_EQ(learning_rate(square, 1.0, 100, 100), 0.2);
}

TEST(Schedule, ConstantStaysAfterItsWarmUp) {
  const ScheduleConfig schedule{.name = "constant", .warmup = 4};
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 0.3, 10, 0), 0.0);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 0.3, 10, 3), 0.225);
  for (const int64_t step : {4, 7, 1000}) {
    EXPECT_DOUBLE_EQ(learning_rate(schedule, 0.3, 10, step), 0.3);
  }
}

TEST(Schedule, WarmUpMayBeAsLongAsTheRun) {
  for (const char* name :
       {"constant", "cosine", "inverse_sqrt", "polynomial"}) {
    const ScheduleConfig schedule{.name = name, .warmup = 10};
    EXPECT_DOUBLE_EQ(learning_rate(schedule, 1.0, 10, 9), 0.9) << name;
  }
}

// SPEC, translation: warm-up of 1,000 steps from 1e-5 to .1, x .1 at 300k and
// 450k of 500k updates.
TEST(Schedule, MilestonesMultiply) {
  const ScheduleConfig schedule{.name = "milestones",
                                .warmup = 1000,
                                .start = 1e-4,
                                .milestones = "300000,450000"};
  const auto at = [&](int64_t step) {
    return learning_rate(schedule, 0.1, 500000, step);
  };
  EXPECT_NEAR(at(0), 1e-5, 1e-15);
  EXPECT_DOUBLE_EQ(at(1000), 0.1);
  EXPECT_DOUBLE_EQ(at(299999), 0.1);
  EXPECT_DOUBLE_EQ(at(300000), 0.01);
  EXPECT_NEAR(at(499999), 0.001, 1e-15);
}

TEST(Schedule, MilestonesMustRise) {
  for (const char* text : {"", "5,", "5,5", "0", "9,5", "a", "5 6", "5,,6"}) {
    const ScheduleConfig schedule{.name = "milestones", .milestones = text};
    luna::testing::expect_error<c10::ValueError>(
        [&] { learning_rate(schedule, 0.1, 10, 1); },
        {"schedule.milestones", "rising", "\"" + std::string(text) + "\""});
  }
}

}  // namespace
}  // namespace luna::train
