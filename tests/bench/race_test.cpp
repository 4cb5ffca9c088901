#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "luna/bench/memory.h"
#include "luna/bench/timing.h"

namespace luna::bench {
namespace {

void sleep_ms(int ms) {
  std::this_thread::sleep_for(std::chrono::milliseconds(ms));
}

TEST(Summarize, GivesMedianAndQuartiles) {
  const Timing timing = summarize({5, 1, 4, 2, 3});
  EXPECT_EQ(timing.median, 3);
  EXPECT_EQ(timing.low, 2);
  EXPECT_EQ(timing.high, 4);
  EXPECT_EQ(timing.fastest, 1);
  EXPECT_EQ(timing.runs, 5);
  EXPECT_DOUBLE_EQ(timing.spread(), 1.0 / 3);
  EXPECT_DOUBLE_EQ(summarize({1, 2}).median, 1.5);
}

TEST(Race, TakesTurns) {
  std::string order;
  RaceOptions options;
  options.repeat = 2;
  const auto runner = [&](const std::string& name) {
    return Contestant{name,
                      [&order, name] {
                        order += name;
                        sleep_ms(3);
                      },
                      {}};
  };
  const auto outcomes = race({runner("a"), runner("b"), runner("c")}, options);
  EXPECT_EQ(order, "abcabcabc");  // once to warm up, twice on the clock
  for (const Outcome& o : outcomes) {
    EXPECT_EQ(o.time.runs, 2);
    EXPECT_GE(o.time.fastest, 3e-3);
  }
}

TEST(Race, RunsSlowOnesOnce) {
  int slow = 0, fast = 0;
  RaceOptions options;
  options.repeat = 3;
  options.budget = 0.4;
  const auto outcomes = race({{"slow",
                               [&] {
                                 ++slow;
                                 sleep_ms(150);
                               },
                               {}},
                              {"fast",
                               [&] {
                                 ++fast;
                                 sleep_ms(3);
                               },
                               {}}},
                             options);
  EXPECT_EQ(slow, 1);
  EXPECT_EQ(outcomes[0].time.runs, 1);
  EXPECT_GE(outcomes[0].time.median, 0.15);
  EXPECT_EQ(fast, 4);
}

TEST(Race, LeavesOutWhoMayNotEnter) {
  int runs = 0;
  RaceOptions options;
  options.repeat = 1;
  options.enter = [](std::size_t i) { return i == 1; };
  const auto run = [&] {
    ++runs;
    sleep_ms(3);
  };
  const auto outcomes = race({{"a", run, {}}, {"b", run, {}}}, options);
  EXPECT_EQ(outcomes[0].time.runs, 0);
  EXPECT_EQ(outcomes[1].time.runs, 1);
  EXPECT_EQ(runs, 2);
}

TEST(Race, EndsWhenTheBudgetIsSpent) {
  RaceOptions options;
  options.repeat = 1000;
  options.budget = 0.2;
  const auto start = std::chrono::steady_clock::now();
  const auto outcomes = race({{"a", [] { sleep_ms(5); }, {}}}, options);
  const std::chrono::duration<double> took =
      std::chrono::steady_clock::now() - start;
  EXPECT_GE(outcomes[0].time.runs, 2);
  EXPECT_LT(outcomes[0].time.runs, 40);
  EXPECT_LT(took.count(), 2);
}

TEST(Race, KeepsWhatIsDoneWhenStopped) {
  bool stop = false;
  RaceOptions options;
  options.stop = [&] { return stop; };
  options.after_run = [&](std::size_t i, int, double) { stop = i == 1; };
  const auto run = [] { sleep_ms(3); };
  const auto outcomes =
      race({{"a", run, {}}, {"b", run, {}}, {"c", run, {}}}, options);
  EXPECT_EQ(outcomes[0].time.runs, 1);
  EXPECT_EQ(outcomes[1].time.runs, 1);
  EXPECT_EQ(outcomes[2].time.runs, 0);
}

TEST(Race, ResetsAfterEachRunOffTheClock) {
  int open = 0, most = 0;
  RaceOptions options;
  options.repeat = 2;
  const auto outcomes = race({{"a",
                               [&] {
                                 most = std::max(most, ++open);
                                 sleep_ms(3);
                               },
                               [&] {
                                 --open;
                                 sleep_ms(60);
                               }}},
                             options);
  EXPECT_EQ(open, 0);
  EXPECT_EQ(most, 1);
  EXPECT_LT(outcomes[0].time.fastest, 0.05);
}

TEST(MemoryMeter, SeesTheHighestPointOnly) {
  constexpr std::int64_t kMega = 1 << 20;
  const MemoryMeter before;
  EXPECT_EQ(before.peak(), 0);
  const at::Tensor kept = at::zeros({kMega}, at::kByte);
  const MemoryMeter meter;
  {
    const at::Tensor a = at::zeros({2 * kMega}, at::kByte);
    const at::Tensor b = at::zeros({3 * kMega}, at::kByte);
  }
  const at::Tensor c = at::zeros({4 * kMega}, at::kByte);
  // Blocks may be a page larger than asked for.
  EXPECT_GE(meter.peak(), 5 * kMega);
  EXPECT_LT(meter.peak(), 5 * kMega + 65536);
}

TEST(Race, MeasuresTensorsOfTheFirstRun) {
  at::Tensor held;
  RaceOptions options;
  options.repeat = 1;
  const auto outcomes =
      race({{"a", [&] { held = at::zeros({1 << 20}, at::kFloat); },
             [&] { held.reset(); }}},
           options);
  EXPECT_GE(outcomes[0].peak, 4 << 20);
  EXPECT_LT(outcomes[0].peak, (4 << 20) + 65536);
}

}  // namespace
}  // namespace luna::bench
