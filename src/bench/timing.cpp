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

double timed(const Contestant& contestant, int runs) {
  double total = 0;
  for (int i = 0; i < runs; ++i) {
    const Clock::time_point start = Clock::now();
    contestant.run();
    total += seconds_since(start);
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
  const Clock::time_point start = Clock::now();
  std::vector<Outcome> outcomes(contestants.size());
  std::vector<std::vector<double>> samples(contestants.size());
  std::vector<bool> done(contestants.size(), false);

  for (std::size_t i = 0; i < contestants.size() && !options.stop(); ++i) {
    const MemoryMeter meter;
    const Clock::time_point run_start = Clock::now();
    contestants[i].run();
    outcomes[i].warm_up = seconds_since(run_start);
    outcomes[i].peak = meter.peak();
    if (contestants[i].reset) contestants[i].reset();
    if (outcomes[i].warm_up > options.budget / 4) {
      samples[i].push_back(outcomes[i].warm_up);
      done[i] = true;
    }
    options.after_run(i);
  }
  for (int round = 0; round < options.repeat; ++round) {
    for (std::size_t i = 0; i < contestants.size(); ++i) {
      if (options.stop()) break;
      const double cost = outcomes[i].warm_up;
      const bool affordable = seconds_since(start) + cost <= options.budget;
      if (done[i] || (!affordable && !samples[i].empty())) continue;
      const int runs = std::clamp(
          static_cast<int>(std::ceil(kShortestSample / std::max(cost, 1e-9))),
          1, kMostRunsASample);
      samples[i].push_back(timed(contestants[i], runs));
      options.after_run(i);
    }
  }
  for (std::size_t i = 0; i < contestants.size(); ++i) {
    // Stopped after the warm-up: that run is better than none.
    if (samples[i].empty() && outcomes[i].warm_up > 0) {
      samples[i].push_back(outcomes[i].warm_up);
    }
    if (!samples[i].empty()) outcomes[i].time = summarize(samples[i]);
  }
  return outcomes;
}

}  // namespace luna::bench
