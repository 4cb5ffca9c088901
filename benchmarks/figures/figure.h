// One figure of the project's goals: what was measured, what is to be reached.
#pragma once

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "luna/bench/contenders.h"
#include "luna/bench/timing.h"

namespace luna::figures {

using Json = nlohmann::ordered_json;

struct Figure {
  enum class Goal { kAtLeast, kAtMost, kNone };

  std::string what;
  double value = 0;
  std::string unit;
  Goal goal = Goal::kNone;
  double target = 0;
  double spread = 0;              ///< a share of the value
  Json details = Json::object();  ///< the measurements behind it

  bool met() const {
    return goal == Goal::kNone ||
           (goal == Goal::kAtLeast ? value >= target : value <= target);
  }
};

inline Json timing_json(const bench::Timing& t) {
  return {{"median_ms", t.median * 1e3},
          {"low_ms", t.low * 1e3},
          {"high_ms", t.high * 1e3},
          {"fastest_ms", t.fastest * 1e3},
          {"runs", t.runs}};
}

/// a / b of two medians.
inline double ratio(const bench::Outcome& a, const bench::Outcome& b) {
  return a.time.median / b.time.median;
}

inline double ratio_spread(const bench::Outcome& a, const bench::Outcome& b) {
  return std::hypot(a.time.spread(), b.time.spread());
}

/// Names as raced -> their times.
inline Json outcomes_json(const std::vector<bench::Contestant>& contestants,
                          const std::vector<bench::Outcome>& outcomes) {
  Json json = Json::object();
  for (std::size_t i = 0; i < contestants.size(); ++i) {
    json[contestants[i].name] = timing_json(outcomes[i].time);
  }
  return json;
}

/// The work of the goals: 8,192 tokens x 8 heads x 64, float32; longer
/// sequences alone in their batch.
inline bench::Work standard_work(std::int64_t length) {
  constexpr std::int64_t kTokens = 8192;
  bench::Work work;
  work.batch = std::max<std::int64_t>(1, kTokens / length);
  work.length = length;
  return work;
}

inline bench::RaceOptions race_options(int repeat, double budget) {
  bench::RaceOptions options;
  options.repeat = repeat;
  options.budget = budget;
  return options;
}

}  // namespace luna::figures
