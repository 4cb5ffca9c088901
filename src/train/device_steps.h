#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ops/device_graph.h"
#include "train/device_data.h"
#include "train/step_table.h"
#include "train/train_step.h"

namespace luna::train {

/// Training steps of a run on a device. The data set lies there, and a step,
/// from gathering the batch to the update, is recorded once and replayed;
/// packed, once for each size that its batches have.
class DeviceSteps {
 public:
  /// `changed` names all tensors that a step writes. `warn` is told once if
  /// steps cannot be recorded, and why; then they are launched piece by piece.
  DeviceSteps(TrainStep& step, NamedTensors changed, const data::Dataset& data,
              const data::BatchOptions& form, const TrainConfig& config,
              std::function<void(const std::string&)> warn);

  /// Packs from now on if the config's `pack` says so: "on", which is refused
  /// where `model` or the data cannot be packed, or "auto" on a GPU where it
  /// pays.
  void choose_packing(const models::Model& model);
  bool packs() const { return granule_ > 0; }

  /// Starts step `step` and gives the tokens of its samples. Does not wait.
  int64_t run(int64_t step);

 private:
  /// Of a step: the tokens of each part's sequences, of pairs of both sides,
  /// with the filler. Empty where batches are padded.
  using Sizes = std::vector<int64_t>;

  Sizes sizes() const;
  data::Batch batch_of(int64_t part, const Sizes& sizes) const;
  void compute(const Sizes& sizes);
  void record(int64_t step, const Sizes& sizes);

  TrainStep& step_;
  NamedTensors changed_;
  TrainConfig config_;
  std::function<void(const std::string&)> warn_;
  DeviceData data_;
  StepTable table_;
  int64_t granule_ = 0;  ///< sizes are multiples of it; 0: not packed
  bool records_;
  std::map<Sizes, std::unique_ptr<ops::DeviceGraph>> graphs_{};
};

}  // namespace luna::train
