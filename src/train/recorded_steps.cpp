#include "train/recorded_steps.h"

#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include "luna/train/schedule.h"

namespace luna::train {
namespace {

void copy(const data::Sequences& from, const data::Sequences& to) {
  to.ids.copy_(from.ids, /*non_blocking=*/true);
  to.lengths.copy_(from.lengths, /*non_blocking=*/true);
  if (from.packed) {
    to.packed->starts.copy_(from.packed->starts, /*non_blocking=*/true);
  }
}

}  // namespace

RecordedSteps::RecordedSteps(TrainStep& step, NamedTensors changed,
                             const TrainConfig& config,
                             std::function<void(const std::string&)> warn)
    : step_(step),
      changed_(std::move(changed)),
      config_(config),
      warn_(std::move(warn)),
      lr_(at::zeros({}, at::device(step.device()).dtype(at::kFloat))) {
  if (config.accumulate > 1) give_up("accumulate is more than 1");
}

void RecordedSteps::give_up(const std::string& why) {
  records_ = false;
  recorded_.clear();
  warn_("steps are not recorded as CUDA graphs, which makes them slower: " +
        why);
}

void RecordedSteps::compute(const data::Batch& batch) {
  step_.compute([&](int64_t) { return batch; }, lr_);
}

/// What a step sets up when it first runs (handles, workspaces, kernels) must
/// be there before it is recorded: one step is done and taken back.
RecordedSteps::Recorded RecordedSteps::record(int64_t step,
                                              const data::Batch& batch) {
  Recorded made{.batch = to_device(batch, step_.device())};
  std::vector<at::Tensor> before;
  for (const auto& [name, tensor] : changed_) before.push_back(tensor.clone());
  step_.seed(step);
  compute(made.batch);
  {
    const c10::NoGradGuard no_grad;
    for (size_t i = 0; i < changed_.size(); ++i) {
      changed_[i].second.copy_(before[i]);
    }
  }
  made.graph = ops::capture_graph(step_.device(), [&] { compute(made.batch); });
  return made;
}

RecordedSteps::Shape RecordedSteps::shape_of(const data::Batch& batch) {
  Shape shape;
  for (const data::Sequences& side : {batch.first, *batch.second}) {
    shape.insert(shape.end(),
                 {side.ids.size(0), side.ids.size(1), side.lengths.size(0),
                  side.packed ? side.packed->longest : 0});
  }
  return shape;
}

void RecordedSteps::run(int64_t step, std::span<const data::Batch> batches) {
  if (!records_) return step_.run(step, batches);
  lr_.fill_(learning_rate(config_.schedule, config_.optimizer.lr, config_.steps,
                          step));
  const data::Batch& batch = batches.front();
  const Shape shape = shape_of(batch);
  if (!recorded_.contains(shape)) {
    try {
      recorded_.emplace(shape, record(step, batch));
    } catch (const c10::Error& error) {
      give_up(error.what_without_backtrace());
      return step_.run(step, batches);
    }
  }
  const Recorded& recorded = recorded_.at(shape);
  copy(batch.first, recorded.batch.first);
  copy(*batch.second, *recorded.batch.second);
  recorded.batch.labels.copy_(batch.labels, /*non_blocking=*/true);
  step_.seed(step);
  recorded.graph->replay();
}

}  // namespace luna::train
