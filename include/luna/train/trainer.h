#pragma once

#include <luna/data/splits.h>
#include <luna/models/model.h>
#include <luna/train/evaluate.h>
#include <luna/train/objective.h>
#include <luna/train/run_folder.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace luna::train {

using data::Splits;

/// Data ids of the longest sequence of all splits, cut to max_length unless
/// that is 0.
int64_t longest_sequence(const Splits& splits, int64_t max_length);

/// Where a run stands, for who watches it. Figures of metrics are those of
/// the last line that was logged.
struct Progress {
  enum class Phase { kTraining, kLogged, kValidated, kSaved, kTested };

  Phase phase = Phase::kTraining;
  int64_t step = 0;
  int64_t steps = 0;
  double loss = 0.0;
  double accuracy = 0.0;
  std::string metric{};  ///< the task's at a validation or test, accuracy while
                         ///< training; empty where there are no classes
  double score = 0.0;    ///< its value
  double lr = 0.0;
  double tokens_per_s = 0.0;
  double steps_per_s = 0.0;
  double seconds = 0.0;
  double seconds_left = 0.0;  ///< of the steps that remain
};

struct TrainHooks {
  std::function<void(const Progress&)> progress{};
  std::function<void(const std::string&)> warn{};
  /// Asked after every step; true: save and return.
  std::function<bool()> stop{};
};

struct TrainOptions {
  std::string folder{};
  bool resume = false;
  /// Runs that a sweep lets go at once, this one counted: the summary says so
  /// beside its times.
  int64_t side_by_side = 1;
  c10::Device device = c10::Device(c10::kCPU);
  /// For models that no config describes; empty: make_model of the config.
  std::function<std::shared_ptr<models::Model>()> make_model{};
  Objective objective{};  ///< of that model; empty: the labels' loss
};

struct TrainResult {
  enum class End { kFinished, kStoppedEarly, kInterrupted };

  End end = End::kFinished;
  int64_t step = 0;
  std::string checkpoint{};  ///< the latest; empty if none was saved
  Best best{};
  std::optional<Evaluation> test{};  ///< of the averaged or the best weights
};

/// Trains a run to its end, or until it is told to stop, in its folder (see
/// docs/training.md for what is in it). With `resume` it goes on from the
/// latest checkpoint that is whole, to the same bits as if it had never
/// stopped, on the same machine and number of threads.
TrainResult train(const TrainConfig& config, const Splits& splits,
                  const TrainOptions& options, const TrainHooks& hooks = {});

/// The weights that a run is judged by, in a model of its config: averaged/
/// where it is, else best/.
std::shared_ptr<models::Model> load_best(const RunFolder& run,
                                         const TrainConfig& config,
                                         const data::TaskInfo& task);

}  // namespace luna::train
