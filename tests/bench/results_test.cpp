#include "luna/bench/results.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <cmath>

#include "luna/report/bench_report.h"

namespace luna::bench {
namespace {

void add(Results& results, const std::string& name, std::int64_t length,
         double seconds, Mode mode = Mode::kForward) {
  results.measurements.push_back(
      {name, mode, length, 1, {seconds, seconds, seconds, seconds, 3}, 100});
}

/// Softmax doubles with every length; `other` takes the times given.
Results against_softmax(const std::vector<double>& other) {
  Results results;
  double softmax = 1;
  std::int64_t length = 128;
  for (const double seconds : other) {
    add(results, "softmax", length, softmax);
    add(results, "other", length, seconds);
    softmax *= 2;
    length *= 2;
  }
  return results;
}

TEST(Crossover, LiesBetweenMeasuredLengthsOnLogLog) {
  // Slowness sqrt(2) at 128 and 1/sqrt(2) at 256: half way, 128 sqrt(2).
  const double root = std::sqrt(2.0);
  const auto found = crossovers(against_softmax({root, root}));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].kind, Crossover::Kind::kBetween);
  EXPECT_NEAR(found[0].length, 128 * root, 1e-6);
}

TEST(Crossover, IsFromWhereItIsNeverSlowerAgain) {
  // Slowness 0.5, 2, 0.5: slower once more at 256, so half way to 512.
  const auto found = crossovers(against_softmax({0.5, 4, 2}));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].kind, Crossover::Kind::kBetween);
  EXPECT_NEAR(found[0].length, 256 * std::sqrt(2.0), 1e-6);
}

TEST(Crossover, SaysWhenItLiesOutsideOfWhatWasMeasured) {
  const auto below = crossovers(against_softmax({1, 1}));
  EXPECT_EQ(below.at(0).kind, Crossover::Kind::kFromTheStart);
  EXPECT_EQ(below.at(0).length, 128);
  const auto above = crossovers(against_softmax({9, 9}));
  EXPECT_EQ(above.at(0).kind, Crossover::Kind::kNotReached);
  EXPECT_EQ(above.at(0).length, 256);
}

TEST(Crossover, LeavesPeersOut) {
  Results results = against_softmax({1, 1});
  add(results, std::string(kPlainFormula), 128, 1);
  add(results, std::string(kSdpaPair), 128, 1);
  EXPECT_EQ(crossovers(results).size(), 1u);
}

Measurement timed(double low, double median, double high) {
  return {"universal", Mode::kForward, 512, 2, {median, low, high, low, 5}, 1};
}

Change change(const Measurement& before, const Measurement& after) {
  Results then, now;
  then.measurements = {before};
  now.measurements = {after};
  return compare(then, now, 0.15).at(0);
}

TEST(Compare, SlowerNeedsTheThresholdAndSeparateSpreads) {
  const Measurement old = timed(9.9, 10, 10.1);
  EXPECT_TRUE(change(old, timed(11.8, 12, 12.2)).slower);
  EXPECT_FALSE(change(old, timed(11.2, 11.3, 11.4)).slower);  // 13 %
  EXPECT_FALSE(change(old, timed(10.0, 12, 14)).slower);      // spreads touch
  EXPECT_TRUE(change(old, timed(7.9, 8, 8.1)).faster);
  EXPECT_FALSE(change(old, timed(7.9, 8, 8.1)).slower);
  EXPECT_DOUBLE_EQ(change(old, timed(11.8, 12, 12.2)).ratio, 1.2);
}

TEST(Compare, PairsOnlyEqualCases) {
  Results then, now;
  add(then, "universal", 128, 1);
  add(then, "universal", 256, 1, Mode::kForwardBackward);
  add(now, "universal", 256, 9);
  add(now, "linear", 128, 9);
  EXPECT_TRUE(compare(then, now, 0.15).empty());
}

TEST(Compare, NamesWhatDiffersBetweenTheRuns) {
  Results then, now;
  then.machine.threads = 2;
  now.machine.threads = 8;
  now.settings.causal = true;
  const auto lines = differences(then, now);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0], "threads: 2 before, 8 now");
  EXPECT_EQ(lines[1], "causal: false before, true now");
}

TEST(ResultsJson, ComesBackAsItWas) {
  Results results = against_softmax({1.5, 2.5});
  results.created = "2025-01-02T03:04:05Z";
  results.complete = false;
  results.machine.cpu = "a \"quoted\" processor";
  results.machine.threads = 2;
  results.settings.causal = true;
  results.settings.modes = {Mode::kForward};
  results.skipped.push_back({"plain", Mode::kForward, 128, "too large"});
  const Results back = results_from_json(to_json(results), "test");
  EXPECT_EQ(to_json(back), to_json(results));
  EXPECT_EQ(back.machine.cpu, results.machine.cpu);
  EXPECT_EQ(back.measurements.at(3).time.median, 2.5);
  EXPECT_FALSE(back.complete);
}

TEST(ResultsJson, RejectsWhatIsNoBench) {
  EXPECT_THROW(results_from_json("{", "a.json"), c10::ValueError);
  EXPECT_THROW(results_from_json("{}", "a.json"), c10::ValueError);
  EXPECT_THROW(results_from_json("{\"format\": \"other/1\"}", "a.json"),
               c10::ValueError);
}

TEST(BenchReport, SpeedIsSoftmaxTimeOverOwn) {
  const std::string text = report::bench_text(against_softmax({0.5, 0.5}));
  EXPECT_NE(text.find("2.00×"), std::string::npos);  // at 128: 1 / 0.5
  EXPECT_NE(text.find("4.00×"), std::string::npos);  // at 256: 2 / 0.5
}

TEST(BenchReport, MarksTheCrossoverOnThePlot) {
  const auto plot = report::time_plot(
      against_softmax({std::sqrt(2.0), std::sqrt(2.0)}), Mode::kForward);
  ASSERT_EQ(plot.marks.size(), 1u);
  EXPECT_NEAR(plot.marks[0].x, 128 * std::sqrt(2.0), 1e-6);
  EXPECT_NEAR(plot.marks[0].y, 1e3 * std::sqrt(2.0), 1e-6);
}

}  // namespace
}  // namespace luna::bench
