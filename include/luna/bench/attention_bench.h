#pragma once

#include <functional>
#include <string>

#include "luna/bench/results.h"

namespace luna::bench {

struct Hooks {
  /// Asked between runs; true ends the work with what there is.
  std::function<bool()> stop = [] { return false; };
  /// After each run: how much is done, as a share, and what is under way.
  std::function<void(double share, const std::string& what)> progress =
      [](double, const std::string&) {};
  /// After all runs of a length and mode.
  std::function<void(const Results& so_far, Mode, std::int64_t length)> done =
      [](const Results&, Mode, std::int64_t) {};
};

/// Settings of `luna bench --quick`: about half a minute on two cores.
Settings quick_settings();

/// Throws ValueError where the settings make no sense.
void check_settings(const Settings& settings);

/// Races the mechanisms at every length, beside softmax (always there) and,
/// where universal or nested take part, beside their peers.
Results bench_attention(const Settings& settings, const Hooks& hooks = {});

}  // namespace luna::bench
