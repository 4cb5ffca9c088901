#include "train/device_steps.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

namespace luna::train {

DeviceSteps::DeviceSteps(TrainStep& step, NamedTensors changed,
                         const data::Dataset& data,
                         const data::BatchOptions& form,
                         const TrainConfig& config,
                         std::function<void(const std::string&)> warn)
    : step_(step),
      changed_(std::move(changed)),
      warn_(std::move(warn)),
      data_(data, form, step.device()),
      table_(config, data_, step.device()) {}

void DeviceSteps::compute() {
  step_.compute(
      [&](int64_t part) {
        data::Batch batch = data_.gather(table_.indices(part), data_.longest(),
                                         table_.moves(part));
        batch.blends = table_.blends(part);
        return batch;
      },
      table_.lr());
  table_.advance();
}

/// What a step sets up when it first runs (handles, workspaces, kernels) must
/// be there before it is recorded: one step is done and taken back.
void DeviceSteps::record(int64_t step) {
  tried_ = true;
  if (!step_.device().is_cuda()) return;
  std::vector<at::Tensor> before;
  for (const auto& [name, tensor] : changed_) before.push_back(tensor.clone());
  step_.seed(step);
  compute();
  {
    const c10::NoGradGuard no_grad;
    for (size_t i = 0; i < changed_.size(); ++i) {
      changed_[i].second.copy_(before[i]);
    }
  }
  try {
    graph_ = ops::capture_graph(step_.device(), [&] { compute(); });
  } catch (const c10::Error& error) {
    warn_(std::string("steps are not recorded as a CUDA graph, which makes "
                      "them slower: ") +
          error.what_without_backtrace());
  }
  table_.turn_to(step);
}

int64_t DeviceSteps::run(int64_t step) {
  const int64_t tokens = table_.turn_to(step);
  if (!tried_) record(step);
  step_.seed(step);
  if (graph_) {
    graph_->replay();
  } else {
    compute();
  }
  return tokens;
}

}  // namespace luna::train
