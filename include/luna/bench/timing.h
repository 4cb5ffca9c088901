#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace luna::bench {

/// Seconds of one thing that was run several times.
struct Timing {
  double median = 0;
  double low = 0, high = 0;  ///< quartiles: half of the runs lie between
  double fastest = 0;
  int runs = 0;

  /// Half the distance of the quartiles, as a share of the median.
  double spread() const;
};

/// Median and quartiles (linear between neighbours) of at least one sample.
Timing summarize(std::vector<double> samples);

/// Something to be timed against others.
struct Contestant {
  std::string name;
  std::function<void()> run;
  std::function<void()> reset;  ///< after each run, not timed; may be empty
};

struct RaceOptions {
  int repeat = 7;
  double budget = 30;  ///< seconds for the whole race
  /// Asked between runs; true ends the race with what there is.
  std::function<bool()> stop = [] { return false; };
  /// Asked before the first run of each; false leaves it out.
  std::function<bool(std::size_t)> enter = [](std::size_t) { return true; };
  /// After each run (round 0: the first, which warms up), with its seconds.
  std::function<void(std::size_t, int round, double seconds)> after_run =
      [](std::size_t, int, double) {};
};

struct Outcome {
  Timing time;            ///< runs = 0: it never ran
  std::int64_t peak = 0;  ///< bytes of tensors above what was there before
};

/// Runs the contestants in turn (A, B, C, A, B, C, ...), so that whatever
/// else the machine does falls on all alike.
///
/// The first run of each warms up and measures memory. Then they repeat until
/// each ran `repeat` times or the budget is spent. No contestant takes more
/// than its share of the budget; the first run of one that is too slow for a
/// second is its sample. Very short ones run several times a sample.
std::vector<Outcome> race(const std::vector<Contestant>& contestants,
                          const RaceOptions& options);

}  // namespace luna::bench
