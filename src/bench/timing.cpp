#include "luna/bench/timing.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "luna/bench/memory.h"

namespace luna::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kShortestSample = 2e-3;  // seconds; below, clocks get coarse
constexpr int kMostRunsASample = 1000;
constexpr double kLeastShare = 0.15;  // of the budget, for one contestant

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double quantile(const std::vector<double>& sorted, double share) {
  const double place = share * static_cast<double>(sorted.size() - 1);
  const std::size_t below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  const double weight = place - static_cast<double>(below);
  return sorted[below] * (1 - weight) + sorted[above] * weight;
}

/// Mean seconds of a run. The peak is read before the reset.
double timed(const Contestant& contestant, int runs,
             const MemoryMeter* meter = nullptr, std::int64_t* peak = nullptr) {
  double total = 0;
  for (int i = 0; i < runs; ++i) {
    const Clock::time_point start = Clock::now();
    contestant.run();
    total += seconds_since(start);
    if (meter != nullptr) *peak = meter->peak();
    if (contestant.reset) contestant.reset();
  }
  return total / runs;
}

}  // namespace

double Timing::spread() const {
  return median > 0 ? (high - low) / 2 / median : 0;
}

Timing summarize(std::vector<double> samples) {
  TORCH_CHECK(!samples.empty(), "summarize: expected samples, got none");
  std::sort(samples.begin(), samples.end());
  Timing timing;
  timing.median = quantile(samples, 0.5);
  timing.low = quantile(samples, 0.25);
  timing.high = quantile(samples, 0.75);
  timing.fastest = samples.front();
  timing.runs = static_cast<int>(samples.size());
  return timing;
}

std::vector<Outcome> race(const std::vector<Contestant>& contestants,
                          const RaceOptions& options) {
  struct Runner {
    std::vector<double> samples;
    double first = 0, spent = 0;
    bool done = false;
  };
  const std::size_t count = contestants.size();
  const Clock::time_point start = Clock::now();
  std::vector<Outcome> outcomes(count);
  std::vector<Runner> runners(count);

  for (std::size_t i = 0; i < count && !options.stop(); ++i) {
    Runner& runner = runners[i];
    runner.done = !options.enter(i);
    if (runner.done) continue;
    const MemoryMeter meter;
    runner.first = runner.spent =
        timed(contestants[i], 1, &meter, &outcomes[i].peak);
    options.after_run(i, 0, runner.first);
  }
  const double share =
      options.budget * std::max(kLeastShare, 1.0 / static_cast<double>(count));
  for (int round = 1; round <= options.repeat; ++round) {
    for (std::size_t i = 0; i < count && !options.stop(); ++i) {
      Runner& runner = runners[i];
      if (runner.done || runner.first == 0) continue;
      const double last =
          runner.samples.empty() ? runner.first : runner.samples.back();
      const int runs = std::clamp(
          static_cast<int>(std::ceil(kShortestSample / std::max(last, 1e-9))),
          1, kMostRunsASample);
      const double cost = last * runs;
      runner.done = runner.spent + cost > share ||
                    seconds_since(start) + cost > options.budget;
      if (runner.done) continue;
      runner.samples.push_back(timed(contestants[i], runs));
      runner.spent += runner.samples.back() * runs;
      options.after_run(i, round, runner.samples.back());
    }
  }
  for (std::size_t i = 0; i < count; ++i) {
    Runner& runner = runners[i];
    // One run, though it warmed up, is better than none.
    if (runner.samples.empty() && runner.first > 0) {
      runner.samples.push_back(runner.first);
    }
    if (!runner.samples.empty()) outcomes[i].time = summarize(runner.samples);
  }
  return outcomes;
}

}  // namespace luna::bench
