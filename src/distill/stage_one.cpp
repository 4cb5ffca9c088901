#include "luna/distill/stage_one.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "luna/data/batch.h"
#include "luna/train/optimizer.h"
#include "luna/train/schedule.h"
#include "ops/device_graph.h"
#include "train/device_data.h"
#include "train/step_table.h"
#include "train/train_step.h"

namespace luna::distill {
namespace {

/// The first `samples` of the order that a seed gives, all in one epoch.
std::vector<int64_t> chosen(const data::Dataset& data, int64_t samples,
                            uint64_t seed) {
  const int64_t count =
      samples > 0 ? std::min(samples, data.size()) : data.size();
  std::vector<int64_t> all =
      data::DataOrder(data.size(), data.size(), seed).batch(0);
  all.resize(count);
  return all;
}

/// Steps of a phase, one after the other.
class Steps {
 public:
  Steps(Student& student, const data::Dataset& data, const Phase& phase,
        const StageOneOptions& options)
      : student_(student),
        data_(data),
        kind_(options.loss),
        parameters_(student.parameters()),
        device_(parameters_.front().second.device()),
        config_(as_config(phase, options)),
        optimizer_(config_.optimizer, parameters_),
        order_(data.size(), phase.batch, options.seed) {
    const at::TensorOptions scalar = at::device(device_).dtype(at::kFloat);
    yes_ = at::ones({}, scalar);
    no_ = at::zeros({}, scalar);
    sum_ = at::zeros({}, scalar);
    if (device_.is_cpu()) return;
    there_.emplace(data, student.batch_options(), device_);
    table_.emplace(config_, *there_, device_);
  }

  void run(int64_t step) {
    if (!there_) {
      const at::Tensor lr = at::scalar_tensor(
          train::learning_rate(config_.schedule, config_.optimizer.lr,
                               config_.steps, step),
          at::kFloat);
      return learn(
          make_batch(data_, order_.batch(step), student_.batch_options()), lr);
    }
    table_->turn_to(step);
    if (!tried_) record(step);
    graph_ ? graph_->replay() : learn_there();
  }

  /// Of the losses since it was last asked.
  double take_mean(int64_t steps) {
    const double mean = sum_.item<double>() / static_cast<double>(steps);
    sum_.zero_();
    return mean;
  }

 private:
  static train::TrainConfig as_config(const Phase& phase,
                                      const StageOneOptions& options) {
    train::TrainConfig config;
    config.optimizer = {.name = "adam", .lr = phase.lr, .beta2 = 0.999};
    config.schedule = {.name = "cosine", .warmup = phase.steps / 20};
    config.steps = phase.steps;
    config.batch = phase.batch;
    config.autocast = options.autocast;
    config.seed = static_cast<int64_t>(options.seed);
    return config;
  }

  void learn(const data::Batch& batch, const at::Tensor& lr) {
    optimizer_.drop_gradients();
    at::Tensor loss;
    {
      const train::Autocast autocast(config_.autocast, device_.type());
      loss = student_.loss(batch, kind_);
    }
    loss.backward();
    optimizer_.step(lr, {.scale = yes_, .skip = no_, .taken = yes_});
    sum_.add_(loss.detach());
  }

  void learn_there() {
    learn(there_->gather(table_->indices(0), there_->longest()), table_->lr());
    table_->advance();
  }

  /// As train::DeviceSteps does it: one step is done and taken back.
  void record(int64_t step) {
    tried_ = true;
    std::vector<at::Tensor> changed = {sum_}, before;
    for (const auto& tensors : {parameters_, optimizer_.state()}) {
      for (const auto& [name, tensor] : tensors) changed.push_back(tensor);
    }
    for (const at::Tensor& tensor : changed) {
      before.push_back(tensor.detach().clone());
    }
    learn_there();
    {
      const c10::NoGradGuard no_grad;
      for (size_t i = 0; i < changed.size(); ++i) changed[i].copy_(before[i]);
    }
    try {
      graph_ = ops::capture_graph(device_, [&] { learn_there(); });
    } catch (const c10::Error& error) {
      TORCH_WARN_ONCE(
          "stage 1: steps are not recorded as a CUDA graph, which makes them "
          "slower: ",
          error.what_without_backtrace());
    }
    table_->turn_to(step);
  }

  Student& student_;
  const data::Dataset& data_;
  StageOneLoss kind_;
  io::NamedTensors parameters_;
  c10::Device device_;
  train::TrainConfig config_;
  train::Optimizer optimizer_;
  data::DataOrder order_;
  at::Tensor yes_, no_, sum_;
  // On a device alone:
  std::optional<train::DeviceData> there_{};
  std::optional<train::StepTable> table_{};
  std::unique_ptr<ops::DeviceGraph> graph_{};
  bool tried_ = false;
};

}  // namespace

std::vector<double> train_student(Student& student, const data::Dataset& data,
                                  const Phase& phase,
                                  const StageOneOptions& options) {
  if (!student.learns() || phase.steps == 0) return {};
  Steps steps(student, data, phase, options);
  const int64_t part = std::max<int64_t>(1, phase.steps / 10);
  std::vector<double> losses;
  for (int64_t step = 0; step < phase.steps; ++step) {
    if (options.stop && options.stop()) return losses;
    steps.run(step);
    if ((step + 1) % part > 0) continue;
    losses.push_back(steps.take_mean(part));
    if (options.progress) {
      options.progress(step + 1, phase.steps, losses.back());
    }
  }
  return losses;
}

std::vector<data::Batch> first_batches(const Student& student,
                                       const data::Dataset& data,
                                       int64_t samples, int64_t batch,
                                       uint64_t seed) {
  const std::vector<int64_t> all = chosen(data, samples, seed);
  std::vector<data::Batch> batches;
  for (int64_t first = 0; first < std::ssize(all); first += batch) {
    const int64_t count = std::min(batch, std::ssize(all) - first);
    batches.push_back(
        train::to_device(make_batch(data, std::span(all).subspan(first, count),
                                    student.batch_options()),
                         student.device()));
  }
  return batches;
}

std::vector<std::vector<double>> head_divergence(Student& student,
                                                 const data::Dataset& data,
                                                 int64_t samples,
                                                 int64_t batch) {
  const at::NoGradGuard no_grad;
  at::Tensor sum;
  double rows = 0;
  for (const auto& part : first_batches(student, data, samples, batch, 0)) {
    const Student::Divergence found = student.divergence(part);
    const at::Tensor weighed = found.mean * found.rows;
    sum = sum.defined() ? sum + weighed : weighed;
    rows += found.rows;
  }
  const at::Tensor mean = (sum / rows).cpu().to(at::kDouble).contiguous();
  std::vector<std::vector<double>> all;
  for (int64_t layer = 0; layer < mean.size(0); ++layer) {
    const double* const row = mean[layer].const_data_ptr<double>();
    all.emplace_back(row, row + mean.size(1));
  }
  return all;
}

}  // namespace luna::distill
