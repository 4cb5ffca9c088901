#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ops/device_graph.h"
#include "train/train_step.h"

namespace luna::train {

/// Training steps on a device from batches of few shapes that the host makes.
/// A step of each shape is recorded once, over tensors of its own, into which
/// the next batch of that shape is copied.
class RecordedSteps {
 public:
  /// `changed` names all tensors that a step writes. `warn` is told once if
  /// steps cannot be recorded, and why; then they are launched piece by piece.
  RecordedSteps(TrainStep& step, NamedTensors changed,
                const TrainConfig& config,
                std::function<void(const std::string&)> warn);

  /// Starts step `step` from its batches. Does not wait.
  void run(int64_t step, std::span<const data::Batch> batches);

 private:
  struct Recorded {
    data::Batch batch{};  ///< on the device
    std::unique_ptr<ops::DeviceGraph> graph{};
  };
  /// All that a recorded step takes for granted.
  using Shape = std::vector<int64_t>;
  static Shape shape_of(const data::Batch& batch);

  Recorded record(int64_t step, const data::Batch& batch);
  void compute(const data::Batch& batch);
  void give_up(const std::string& why);

  TrainStep& step_;
  NamedTensors changed_;
  TrainConfig config_;
  std::function<void(const std::string&)> warn_;
  at::Tensor lr_;  ///< float32 scalar on the device
  bool records_ = true;
  std::map<Shape, Recorded> recorded_{};
};

}  // namespace luna::train
