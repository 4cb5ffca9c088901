#pragma once

#include <functional>
#include <string>

#include "luna/bench/results.h"

namespace luna::bench {

/// One run that is done.
struct Progress {
  double share;  ///< of the whole work, about
  std::string attention;
  Mode mode;
  std::int64_t length;
  int round;  ///< 0: the first, which warms up
  double seconds;
};

struct Hooks {
  /// Asked between runs; true ends the work with what there is.
  std::function<bool()> stop = [] { return false; };
  std::function<void(const Progress&)> progress = [](const Progress&) {};
};

/// Settings of `luna bench --quick`: about half a minute on two cores.
Settings quick_settings();

/// Throws ValueError where the settings make no sense.
void check_settings(const Settings& settings);

/// Races the mechanisms at every length, beside softmax (always there) and,
/// where universal or nested take part, beside their peers. Every round goes
/// through all lengths, so that a run which is cut short still shows them all.
Results bench_attention(const Settings& settings, const Hooks& hooks = {});

}  // namespace luna::bench
