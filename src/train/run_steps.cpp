#include "train/run_steps.h"

#include "train/packing.h"

namespace luna::train {

RunSteps::RunSteps(TrainStep& step, const models::Model& model,
                   const data::Dataset& data, const data::BatchOptions& form,
                   const TrainConfig& config,
                   const std::function<void(const std::string&)>& warn)
    : step_(step), data_(data), form_(form), config_(config) {
  const bool on_cpu = step.device().is_cpu();
  NamedTensors changed = named_state(model);
  for (const auto& tensor : step.state()) changed.push_back(tensor);
  if (data::as_translation(data) != nullptr) {
    if (!on_cpu) {
      layout_ = Layout::kFewShapes;
      recorded_.emplace(step, changed, config, warn);
    }
    // Padded, a quarter of a batch of short sentences is padding.
    if (packs(config, step.device(), model.refuses_packed(),
              /*much_padding=*/true)) {
      layout_ = Layout::kPacked;
    }
  } else if (!on_cpu || config.pack == "on") {
    on_device_.emplace(step, changed, data, form, config, warn);
    on_device_->choose_packing(model);
  }
}

RunBatches RunSteps::batches() const {
  return RunBatches(data_, config_, form_, layout_);
}

std::vector<data::Batch> RunSteps::batches_of(int64_t step) const {
  return batches().of_step(step);
}

void RunSteps::make_ahead(int64_t step) {
  if (on_device_ || prefetch_) return;
  prefetch_.emplace(
      [batches = batches()](int64_t of) mutable { return batches.of_step(of); },
      step, config_.steps);
}

int64_t RunSteps::run(int64_t step) {
  if (on_device_) return on_device_->run(step);
  const std::vector<data::Batch> batches = prefetch_->next();
  int64_t count = 0;
  for (const data::Batch& batch : batches) count += tokens(batch);
  recorded_ ? recorded_->run(step, batches) : step_.run(step, batches);
  return count;
}

int64_t RunSteps::tokens(const data::Batch& batch) const {
  if (!keeps_black(config_)) {
    return batch.first.ids.ne(0).sum().item<int64_t>();
  }
  int64_t count = batch.first.lengths.sum().item<int64_t>();
  if (batch.second) count += batch.second->lengths.sum().item<int64_t>();
  return count;
}

}  // namespace luna::train
