#include "train/train_step.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rsub.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include "data/counted.h"
#include "luna/train/schedule.h"

namespace luna::train {
namespace {

/// Keeps dropout's seeds apart from other draws of the same seed.
constexpr uint64_t kDropoutStream = 0x64726f706f7574;  // "dropout"

data::Sequences to_device(const data::Sequences& from,
                          const c10::Device& device) {
  data::Sequences moved = from;
  moved.ids = from.ids.to(device, at::kLong, /*non_blocking=*/true);
  moved.lengths = from.lengths.to(device, at::kLong, /*non_blocking=*/true);
  return moved;
}

c10::Device device_of(const torch::nn::Module& model) {
  for (const at::Tensor& parameter : model.parameters()) {
    return parameter.device();
  }
  TORCH_CHECK_VALUE(false, "TrainStep: expected a model with parameters");
}

}  // namespace

std::string describe(Skips::Why why) {
  switch (why) {
    case Skips::Why::kNone:
      return "nothing was skipped";
    case Skips::Why::kLoss:
      return "the loss is not finite";
    case Skips::Why::kGradient:
      return "the gradient is not finite";
  }
  return "";
}

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
  moved.labels = batch.labels.to(device, at::kLong, /*non_blocking=*/true);
  if (batch.second) moved.second = to_device(*batch.second, device);
  return moved;
}

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& labels,
                         double label_smoothing) {
  return at::cross_entropy_loss(logits.to(at::kFloat), labels, {},
                                at::Reduction::Mean, -100, label_smoothing);
}

TrainStep::TrainStep(std::shared_ptr<models::Model> model,
                     const TrainConfig& config)
    : model_(std::move(model)),
      config_(config),
      optimizer_(config.optimizer, named_parameters(*model_)),
      device_(device_of(*model_)) {
  const at::TensorOptions scalar = at::device(device_).dtype(at::kFloat);
  lr_ = at::zeros({}, scalar);
  loss_ = at::zeros({}, scalar);
  correct_ = at::zeros({}, scalar);
  one_ = at::ones({}, scalar);
  skipped_ = at::zeros({}, scalar);
  in_row_ = at::zeros({}, scalar);
  why_ = at::zeros({}, scalar);
  totals_ = at::zeros({4}, scalar.dtype(at::kDouble));
}

at::Tensor TrainStep::accumulate(int64_t step, int64_t part,
                                 const data::Batch& batch) {
  at::manual_seed(data::counted_bits(config_.seed, kDropoutStream,
                                     step * config_.accumulate + part));
  const data::Batch moved = to_device(batch, device_);
  at::Tensor logits, loss;
  {
    const Autocast autocast(config_.autocast, device_.type());
    logits = model_->forward(moved);
    loss = cross_entropy(logits, moved.labels, config_.label_smoothing);
  }
  const double share = 1.0 / static_cast<double>(config_.accumulate);
  (loss * share).backward();
  correct_.add_(logits.detach().argmax(-1).eq(moved.labels).sum());
  return loss.detach();
}

void TrainStep::run(int64_t step, std::span<const data::Batch> batches) {
  TORCH_CHECK_VALUE(std::ssize(batches) == config_.accumulate,
                    "TrainStep::run: batches: expected ", config_.accumulate,
                    " (accumulate), got ", batches.size());
  model_->train();
  optimizer_.zero_gradients();
  lr_.fill_(learning_rate(config_.schedule, config_.optimizer.lr, config_.steps,
                          step));
  loss_.zero_();
  correct_.zero_();
  int64_t samples = 0;
  for (int64_t part = 0; part < std::ssize(batches); ++part) {
    const at::Tensor loss = accumulate(step, part, batches[part]);
    loss_.add_(loss, 1.0 / static_cast<double>(batches.size()));
    samples += batches[part].labels.size(0);
  }

  const at::Tensor norm = optimizer_.gradient_norm();
  const auto code = [](Skips::Why why) { return static_cast<double>(why); };
  const at::Tensor good = loss_.isfinite().logical_and(norm.isfinite());
  const at::Tensor halted = in_row_.ge(kSkipLimit);
  const at::Tensor skip = halted.logical_or(good.logical_not()).to(at::kFloat);
  why_.copy_(at::where(good, why_,
                       at::where(loss_.isfinite(), code(Skips::Why::kGradient),
                                 code(Skips::Why::kLoss))));
  skipped_.add_(skip);
  in_row_.add_(1).mul_(skip);
  optimizer_.step(
      lr_, config_.clip > 0 ? (norm / config_.clip).clamp_min(1) : one_, skip);

  const at::Tensor taken = at::rsub(skip, 1);
  const at::Tensor counts =
      at::stack({at::where(skip.gt(0), 0.0, loss_), taken, correct_ * taken,
                 taken * static_cast<double>(samples)});
  totals_.add_(counts);
}

Skips TrainStep::skips() const {
  const at::Tensor read = at::stack({skipped_, in_row_, why_}).cpu();
  const float* const s = read.const_data_ptr<float>();
  return {static_cast<int64_t>(s[0]), static_cast<int64_t>(s[1]),
          static_cast<Skips::Why>(s[2])};
}

TrainStep::Means TrainStep::take_means() {
  const at::Tensor totals =
      totals_.to(at::kCPU, at::kDouble, /*non_blocking=*/false, /*copy=*/true);
  totals_.zero_();
  const double* const t = totals.const_data_ptr<double>();
  return {t[0] / t[1], t[2] / t[3]};
}

NamedTensors TrainStep::state() const {
  NamedTensors tensors = optimizer_.state();
  tensors.emplace_back("meter.totals", totals_);
  tensors.emplace_back("meter.skipped", skipped_);
  tensors.emplace_back("meter.skipped_in_row", in_row_);
  tensors.emplace_back("meter.skipped_why", why_);
  return tensors;
}

}  // namespace luna::train
