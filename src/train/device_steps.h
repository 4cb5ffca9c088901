#pragma once

#include <functional>
#include <memory>
#include <string>

#include "ops/device_graph.h"
#include "train/device_data.h"
#include "train/step_table.h"
#include "train/train_step.h"

namespace luna::train {

/// Training steps of a run on a device. The data set lies there, and a step,
/// from gathering the batch to the update, is recorded once and replayed.
class DeviceSteps {
 public:
  /// `changed` names all tensors that a step writes. `warn` is told once if
  /// steps cannot be recorded, and why; then they are launched piece by piece.
  DeviceSteps(TrainStep& step, NamedTensors changed, const data::Dataset& data,
              const data::BatchOptions& form, const TrainConfig& config,
              std::function<void(const std::string&)> warn);

  /// Starts step `step` and gives the tokens of its samples. Does not wait.
  int64_t run(int64_t step);

 private:
  void compute();
  void record(int64_t step);

  TrainStep& step_;
  NamedTensors changed_;
  std::function<void(const std::string&)> warn_;
  DeviceData data_;
  StepTable table_;
  std::unique_ptr<ops::DeviceGraph> graph_{};
  bool tried_ = false;
};

}  // namespace luna::train
