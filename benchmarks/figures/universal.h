// Universal attention beside the plain formula, SDPA and its causal form.
#pragma once

#include <fmt/format.h>

#include "figures/figure.h"

namespace luna::figures {

struct SdpaGoal {
  std::int64_t length;
  double at_least;  ///< 0: no goal at this length
};

/// Speed beside plain and SDPA at three lengths, and the crossover.
inline std::vector<Figure> universal_speed(bench::Mode mode,
                                           std::vector<SdpaGoal> goals) {
  std::vector<Figure> figures;
  bench::Results results;  // for the crossover
  const auto race_at = [&](std::int64_t length, bool plain) {
    const bench::Work work = standard_work(length);
    const bench::Inputs inputs = bench::make_inputs(work);
    std::vector<bench::Contestant> contestants;
    for (const char* name : {"universal", "softmax", "plain"}) {
      if (name == bench::kPlainFormula && !plain) continue;
      contestants.push_back(
          bench::contestant(bench::make_contender(name, work, inputs), mode,
                            inputs.out_gradient));
    }
    const auto outcomes = bench::race(
        contestants, race_options(7, mode == bench::Mode::kForward ? 15 : 45));
    for (std::size_t i = 0; i < 2; ++i) {
      results.measurements.push_back({contestants[i].name, mode, length,
                                      work.batch, outcomes[i].time,
                                      outcomes[i].peak});
    }
    return std::pair{outcomes, outcomes_json(contestants, outcomes)};
  };
  for (const std::int64_t length : {64, 128, 256}) race_at(length, false);
  for (const SdpaGoal& goal : goals) {
    const auto [outcomes, details] = race_at(goal.length, true);
    const std::string where =
        fmt::format("universal {}, n = {}: ", mode_name(mode), goal.length);
    figures.push_back({where + "speed beside the plain formula",
                       ratio(outcomes[2], outcomes[0]), "×",
                       Figure::Goal::kAtLeast, 100,
                       ratio_spread(outcomes[2], outcomes[0]), details});
    figures.push_back(
        {where + "speed beside SDPA", ratio(outcomes[1], outcomes[0]), "×",
         goal.at_least > 0 ? Figure::Goal::kAtLeast : Figure::Goal::kNone,
         goal.at_least, ratio_spread(outcomes[1], outcomes[0]), details});
  }
  for (const bench::Crossover& c : bench::crossovers(results)) {
    Json details = Json::object();
    for (const bench::Measurement& m : results.measurements) {
      details[fmt::format("{}, n = {}", m.attention, m.length)] =
          timing_json(m.time);
    }
    const bool reached = c.kind != bench::Crossover::Kind::kNotReached;
    figures.push_back(
        {fmt::format("universal {}: never slower than SDPA from n",
                     mode_name(mode)),
         reached ? c.length : INFINITY, "", Figure::Goal::kAtMost, 128, 0,
         details});
  }
  return figures;
}

inline std::vector<Figure> universal_forward() {
  return universal_speed(bench::Mode::kForward,
                         {{512, 5}, {1024, 0}, {4096, 40}});
}

inline std::vector<Figure> universal_backward() {
  return universal_speed(bench::Mode::kForwardBackward,
                         {{512, 8}, {1024, 0}, {4096, 30}});
}

inline std::vector<Figure> causal() {
  std::vector<Figure> figures;
  for (const std::int64_t length : {512, 1024, 4096}) {
    for (const auto mode :
         {bench::Mode::kForward, bench::Mode::kForwardBackward}) {
      bench::Work work = standard_work(length);
      const bench::Inputs inputs = bench::make_inputs(work);
      std::vector<bench::Contestant> contestants;
      for (const bool is_causal : {true, false}) {
        work.causal = is_causal;
        contestants.push_back(
            bench::contestant(bench::make_contender("universal", work, inputs),
                              mode, inputs.out_gradient));
        contestants.back().name = is_causal ? "causal" : "not causal";
      }
      const auto outcomes = bench::race(contestants, race_options(11, 4));
      figures.push_back(
          {fmt::format("universal {}, n = {}: time, causal / not causal",
                       mode_name(mode), length),
           ratio(outcomes[0], outcomes[1]), "×", Figure::Goal::kAtMost, 1.8,
           ratio_spread(outcomes[0], outcomes[1]),
           outcomes_json(contestants, outcomes)});
    }
  }
  return figures;
}

}  // namespace luna::figures
