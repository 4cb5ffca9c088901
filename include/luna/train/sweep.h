#pragma once

#include <luna/train/run_folder.h>
#include <luna/train/sweep_list.h>

#include <optional>
#include <string>
#include <vector>

namespace luna::train {

/// Configs x seeds, a run folder each below `out`.
struct SweepPlan {
  std::vector<SweepConfig> configs{};
  std::vector<std::string> overrides{};  ///< put over each of them, last
  std::string out = "runs";
  /// A folder of runs, as `luna report --keep` leaves them: what has finished
  /// there need not be trained again. Empty: none.
  std::string kept{};
};

struct SweepRun {
  std::string name{};   ///< "universal-image-softmax-s1"
  std::string group{};  ///< without the seed
  SweepConfig source{};
  TrainConfig config{};  ///< as it will be run
  RunFolder folder;
  bool kept = false;  ///< `folder` is one of plan.kept
};

/// Seed by seed, of each all configs that have it: a sweep that is cut off has
/// all rows once rather than a few rows often. Names are those of a config's
/// folder and file. Throws for two configs of one name, and for two of one task
/// that want different data, which one folder cannot hold.
std::vector<SweepRun> plan_sweep(const SweepPlan& plan);

/// Where a run is, read from its folder.
struct SweepState {
  enum class Phase { kNotStarted, kStarted, kFinished };

  Phase phase = Phase::kNotStarted;
  int64_t step = 0;
  std::optional<double> loss{}, accuracy{};  ///< of training; of the test
  std::optional<double> steps_per_s{};
  double seconds = 0;  ///< spent on it
};
SweepState read_sweep_state(const SweepRun& run);

/// Throws if the folder of a run that is not kept holds one of another config.
void check_same_run(const SweepRun& run);

/// What is left for `jobs` runs at a time; nothing is known before the first
/// line of metrics. Runs that have not started are taken to be as fast as the
/// others of their config, or else of their task.
std::optional<double> sweep_seconds_left(const std::vector<SweepRun>& runs,
                                         const std::vector<SweepState>& states,
                                         int64_t jobs);

}  // namespace luna::train
