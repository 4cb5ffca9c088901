#include "train/train_step.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>

#include "data/blend.h"
#include "data/counted.h"
#include "luna/train/schedule.h"
#include "nn/heads.h"
#include "ops/cross_entropy.h"
#include "ops/judge_step.h"

namespace luna::train {
namespace {

/// Keeps dropout's seeds apart from other draws of the same seed.
constexpr uint64_t kDropoutStream = 0x64726f706f7574;  // "dropout"

data::Sequences to_device(const data::Sequences& from,
                          const c10::Device& device) {
  data::Sequences moved = from;
  moved.ids = from.ids.to(device, at::kLong, /*non_blocking=*/true);
  moved.lengths = from.lengths.to(device, at::kLong, /*non_blocking=*/true);
  if (from.packed) {
    moved.packed->starts = from.packed->starts.to(device, at::kLong,
                                                  /*non_blocking=*/true);
  }
  return moved;
}

c10::Device device_of(const torch::nn::Module& model) {
  for (const at::Tensor& parameter : model.parameters()) {
    return parameter.device();
  }
  TORCH_CHECK_VALUE(false, "TrainStep: expected a model with parameters");
}

bool is_score(const data::Batch& batch) {
  return batch.labels.is_floating_point();
}

/// Of blended pictures, the label that has the greater share.
at::Tensor main_labels(const data::Batch& batch) {
  if (!batch.blends.defined()) return batch.labels;
  return at::where(data::own_share(batch.blends).ge(0.5), batch.labels,
                   data::of_partner(batch.labels));
}

}  // namespace

NamedTensors named_parameters(const torch::nn::Module& model) {
  NamedTensors tensors;
  for (const auto& item : model.named_parameters()) {
    if (item.value().requires_grad()) {
      tensors.emplace_back(item.key(), item.value());
    }
  }
  return tensors;
}

NamedTensors named_state(const torch::nn::Module& model) {
  NamedTensors tensors;
  for (const auto& item : model.named_parameters()) {
    tensors.emplace_back(item.key(), item.value().detach());
  }
  for (const auto& item : model.named_buffers()) {
    tensors.emplace_back(item.key(), item.value().detach());
  }
  return tensors;
}

Autocast::Autocast(const std::string& autocast, c10::DeviceType device)
    : on_(autocast == "bf16"), device_(device) {
  if (!on_) return;
  was_enabled_ = at::autocast::is_autocast_enabled(device);
  was_ = at::autocast::get_autocast_dtype(device);
  at::autocast::set_autocast_dtype(device, at::kBFloat16);
  at::autocast::set_autocast_enabled(device, true);
  at::autocast::increment_nesting();
}

Autocast::~Autocast() {
  if (!on_) return;
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_, was_enabled_);
  at::autocast::set_autocast_dtype(device_, was_);
}

data::Batch to_device(const data::Batch& batch, const c10::Device& device) {
  if (device.is_cpu()) return batch;
  data::Batch moved = batch;
  moved.first = to_device(batch.first, device);
  moved.labels = batch.labels.to(device, /*non_blocking=*/true);
  if (batch.blends.defined()) {
    moved.blends = batch.blends.to(device, /*non_blocking=*/true);
  }
  if (batch.second) moved.second = to_device(*batch.second, device);
  return moved;
}

at::Tensor task_loss(const at::Tensor& logits, const data::Batch& batch,
                     double label_smoothing) {
  const at::Tensor given = logits.to(at::kFloat);
  if (is_score(batch)) return at::mse_loss(given.squeeze(-1), batch.labels);
  const auto cross_entropy = [&](const at::Tensor& labels,
                                 at::Reduction::Reduction reduction) {
    return at::cross_entropy_loss(given, labels, {}, reduction, data::kNoLabel,
                                  label_smoothing);
  };
  if (!batch.blends.defined()) {
    return cross_entropy(batch.labels, at::Reduction::Mean);
  }
  const at::Tensor own = data::own_share(batch.blends);
  return (own * cross_entropy(batch.labels, at::Reduction::None) +
          (1 - own) * cross_entropy(data::of_partner(batch.labels),
                                    at::Reduction::None))
      .mean();
}

TrainStep::TrainStep(std::shared_ptr<models::Model> model,
                     const TrainConfig& config, Objective objective)
    : model_(std::move(model)),
      config_(config),
      objective_(std::move(objective)),
      optimizer_(config.optimizer, named_parameters(*model_)),
      device_(device_of(*model_)) {
  const at::TensorOptions scalar = at::device(device_).dtype(at::kFloat);
  lr_ = at::zeros({}, scalar);
  one_ = at::ones({}, scalar);
  meter_ = at::zeros({ops::kMeterEntries}, scalar.dtype(at::kDouble));
}

void TrainStep::seed(int64_t step) const {
  at::manual_seed(data::counted_bits(config_.seed, kDropoutStream, step));
}

at::Tensor TrainStep::accumulate(int64_t step, int64_t part,
                                 const data::Batch& batch) {
  if (part == 0) seed(step);
  return forward_and_backward(to_device(batch, device_));
}

Learnt TrainStep::learn(const data::Batch& batch) {
  const Autocast autocast(config_.autocast, device_.type());
  const nn::JointSeeds seeds;
  if (objective_) return objective_(batch);
  const at::Tensor logits = model_->forward(batch);
  if (logits.is_cuda() && !is_score(batch) && !batch.blends.defined()) {
    const auto [loss, correct] = ops::cross_entropy(
        logits, batch.labels,
        {.ignored = data::kNoLabel, .smoothing = config_.label_smoothing});
    return {logits, loss, correct};
  }
  return {logits, task_loss(logits, batch, config_.label_smoothing)};
}

at::Tensor TrainStep::forward_and_backward(const data::Batch& batch) {
  auto [logits, loss, correct] = learn(batch);
  if (config_.accumulate > 1) {
    loss = loss / static_cast<double>(config_.accumulate);
  }
  loss.backward(one_);
  if (is_score(batch)) return loss.detach();
  if (!correct.defined()) {
    correct = logits.detach().argmax(-1).eq(main_labels(batch)).sum();
  }
  if (batch.padded_labels) {
    // As a share of real labels, of which the host does not know the number.
    correct =
        correct * batch.labels.size(0) / batch.labels.ne(data::kNoLabel).sum();
  }
  correct = correct.to(at::kFloat);
  correct_ = correct_.defined() ? correct_ + correct : correct;
  return loss.detach();
}

void TrainStep::run(int64_t step, std::span<const data::Batch> batches) {
  TORCH_CHECK_VALUE(std::ssize(batches) == config_.accumulate,
                    "TrainStep::run: batches: expected ", config_.accumulate,
                    " (accumulate), got ", batches.size());
  seed(step);
  lr_.fill_(learning_rate(config_.schedule, config_.optimizer.lr, config_.steps,
                          step));
  compute([&](int64_t part) { return to_device(batches[part], device_); }, lr_);
}

void TrainStep::compute(const BatchOf& batch_of, const at::Tensor& lr) {
  model_->train();
  optimizer_.drop_gradients();
  correct_ = at::Tensor();
  at::Tensor loss;
  int64_t samples = 0;
  for (int64_t part = 0; part < config_.accumulate; ++part) {
    const data::Batch batch = batch_of(part);
    const at::Tensor share = forward_and_backward(batch);
    loss = part == 0 ? share : loss + share;
    samples += batch.labels.size(0);
  }
  if (!correct_.defined()) correct_ = at::zeros_like(one_);
  const at::Tensor verdict =
      ops::judge_step(meter_, loss, optimizer_.gradient_norm(), correct_,
                      {.samples = static_cast<double>(samples),
                       .clip = config_.clip,
                       .limit = static_cast<double>(kSkipLimit)});
  optimizer_.step(
      lr, {.scale = verdict[0], .skip = verdict[1], .taken = verdict[2]});
}

Reading TrainStep::take_means() {
  Reading reading(meter_);
  meter_.narrow(0, 0, ops::kSkipped).zero_();
  return reading;
}

NamedTensors TrainStep::state() const {
  NamedTensors tensors = optimizer_.state();
  tensors.emplace_back("meter", meter_);
  return tensors;
}

}  // namespace luna::train
