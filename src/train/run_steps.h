#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "train/device_steps.h"
#include "train/prefetch.h"
#include "train/recorded_steps.h"
#include "train/run_batches.h"

namespace luna::train {

/// The steps of a run on its training data: chooses where batches are made,
/// how they are laid out, and whether their steps are recorded.
class RunSteps {
 public:
  /// `step`, which trains `model`, and `data` must outlive it. `warn` is told
  /// once if steps cannot be recorded, and why.
  RunSteps(TrainStep& step, const models::Model& model,
           const data::Dataset& data, const data::BatchOptions& form,
           const TrainConfig& config,
           const std::function<void(const std::string&)>& warn);

  /// Begins to make batches ahead, from those of step `step` on, where the host
  /// makes them and has not begun.
  void make_ahead(int64_t step);
  void stop_making() { prefetch_.reset(); }

  /// Starts step `step`, which follows the last; gives its samples' tokens.
  /// Batches that the host makes must have been begun.
  int64_t run(int64_t step);
  /// How long run() waited for batches, in all.
  double waited() const { return prefetch_ ? prefetch_->waited() : 0.0; }

  /// What step `step` is run on, made once more on the host.
  std::vector<data::Batch> batches_of(int64_t step) const;

 private:
  int64_t tokens(const data::Batch& batch) const;
  RunBatches batches() const;

  TrainStep& step_;
  const data::Dataset& data_;
  data::BatchOptions form_;
  TrainConfig config_;
  /// On a device one of them, the latter of translation; on the CPU neither,
  /// but the former where a classifier's sequences are packed.
  std::optional<DeviceSteps> on_device_{};
  std::optional<RecordedSteps> recorded_{};
  Layout layout_ = Layout::kPadded;
  std::optional<Prefetch> prefetch_{};
};

}  // namespace luna::train
