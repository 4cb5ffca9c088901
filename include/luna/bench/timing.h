#pragma once

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
  /// Called after each run of a contestant, with its index.
  std::function<void(std::size_t)> after_run = [](std::size_t) {};
};

struct Outcome {
  Timing time;            ///< runs = 0: it never ran
  std::int64_t peak = 0;  ///< bytes of tensors above what was there before
  double warm_up = 0;     ///< seconds of the first, uncounted run
};

/// Runs the contestants in turn (A, B, C, A, B, C, ...), so that whatever
/// else the machine does falls on all alike.
///
/// The first run of each warms up and measures memory. One that takes more
/// than a quarter of the budget is not run again: that run is its sample. The
/// others repeat until each ran `repeat` times or the budget is spent, and at
/// least once. Very short ones run several times a sample.
std::vector<Outcome> race(const std::vector<Contestant>& contestants,
                          const RaceOptions& options);

}  // namespace luna::bench
