#pragma once

#include <luna/data/batch.h>
#include <luna/models/model.h>
#include <luna/train/objective.h>
#include <luna/train/optimizer.h>

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "train/meter.h"

namespace luna::train {

/// Steps in a row that may be skipped before a run stops.
constexpr int64_t kSkipLimit = 5;

/// What a model's parameters and buffers are called, in a fixed order.
NamedTensors named_state(const torch::nn::Module& model);
NamedTensors named_parameters(const torch::nn::Module& model);

/// Matrix products in bfloat16 for its lifetime, where `autocast` says so.
class Autocast {
 public:
  Autocast(const std::string& autocast, c10::DeviceType device);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  bool on_;
  c10::DeviceType device_;
  bool was_enabled_ = false;
  at::ScalarType was_ = at::kFloat;
};

data::Batch to_device(const data::Batch& batch, const c10::Device& device);

/// The mean over a batch, in float32 whatever the logits are: cross-entropy,
/// where pictures are blended with the labels of both; of scores the squared
/// error.
at::Tensor task_loss(const at::Tensor& logits, const data::Batch& batch,
                     double label_smoothing = 0.0);

/// One optimizer step after the other. A step never waits for the device:
/// learning rate, loss, accuracy, the decision to skip and their counts are
/// tensors there, read when somebody asks.
class TrainStep {
 public:
  /// Without an objective: the model's logits, by task_loss.
  TrainStep(std::shared_ptr<models::Model> model, const TrainConfig& config,
            Objective objective = {});

  /// Step `step` (from 0) from its `accumulate` batches. Random numbers depend
  /// on (seed, step) alone. Skips the update if loss or gradient is not
  /// finite; after kSkipLimit in a row it skips all that follow.
  void run(int64_t step, std::span<const data::Batch> batches);

  /// The two halves of run, for who has them recorded: what the host does,
  /// then what the device does, from batches and a learning rate (a float32
  /// scalar) that lie there.
  using BatchOf = std::function<data::Batch(int64_t part)>;
  void seed(int64_t step) const;
  void compute(const BatchOf& batch_of, const at::Tensor& lr);

  /// The counts as they are now.
  Reading read() const { return Reading(meter_); }
  /// The same; the means start anew.
  Reading take_means();

  /// All that a resumed run needs beside the weights, as views.
  NamedTensors state() const;

  const c10::Device& device() const { return device_; }
  /// Forward and backward of one batch, as run() does them; gives the loss.
  /// Parts of a step follow each other: the first one seeds.
  at::Tensor accumulate(int64_t step, int64_t part, const data::Batch& batch);
  void drop_gradients() { optimizer_.drop_gradients(); }

 private:
  Learnt learn(const data::Batch& batch);
  at::Tensor forward_and_backward(const data::Batch& batch);

  std::shared_ptr<models::Model> model_;
  TrainConfig config_;
  Objective objective_;
  Optimizer optimizer_;
  c10::Device device_;
  at::Tensor lr_, correct_;  ///< of this step; float32 scalars
  at::Tensor one_;           ///< the loss' own gradient
  at::Tensor meter_;         ///< see ops/step_verdict.h
};

}  // namespace luna::train
