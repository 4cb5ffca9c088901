#pragma once

#include <luna/train/feature_use.h>
#include <luna/train/trainer.h>

#include <functional>
#include <string>
#include <vector>

#include "train/meter.h"
#include "train/metrics_log.h"
#include "train/stopwatch.h"

namespace luna::train {

/// What a run says while it goes: lines of metrics, and progress for who
/// watches.
class RunLog {
 public:
  /// Goes on with the metrics at `path` where `state` ends them. `state`, the
  /// run's, must outlive it: what it says is of then. `watcher` may be empty.
  RunLog(const std::string& path, const TrainConfig& config,
         const data::TaskInfo& task, const RunState& state,
         std::function<void(const Progress&)> watcher);

  /// Of the run, those before it was resumed too.
  double seconds() const { return watch_.seconds(); }
  int64_t bytes() const { return metrics_.bytes(); }
  void sync() { metrics_.sync(); }

  /// The steps after the last such line up to `step`, when the run had seen
  /// `tokens`; with a report.
  void trained(int64_t step, int64_t tokens, const Means& means);
  void skipped(int64_t step, int64_t count, Skips::Why why);
  void stopped(int64_t step, Skips::Why why, const std::string& module,
               const std::vector<int64_t>& batch);
  void features(int64_t step, std::vector<FeatureUse> uses);
  void validated(const Evaluation& result);
  void tested(int64_t step, const Evaluation& result);

  /// With the figures of the last line of training, or those of `judged`.
  void report(Progress::Phase phase, const Evaluation* judged = nullptr) const {
    report(phase, state_.step, judged);
  }

 private:
  void report(Progress::Phase phase, int64_t step,
              const Evaluation* judged) const;

  TrainConfig config_;
  bool scores_;  ///< there are no classes
  const RunState& state_;
  std::function<void(const Progress&)> watcher_;
  MetricsLog metrics_;
  Stopwatch watch_;
  RunState logged_;  ///< at the last line of training
  Progress last_{};
};

}  // namespace luna::train
