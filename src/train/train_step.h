#pragma once

#include <luna/data/batch.h>
#include <luna/models/model.h>
#include <luna/train/optimizer.h>

#include <memory>
#include <span>
#include <string>

namespace luna::train {

/// Steps in a row that may be skipped before a run stops.
constexpr int64_t kSkipLimit = 5;

/// Steps that left the weights as they were.
struct Skips {
  enum class Why { kNone = 0, kLoss = 1, kGradient = 2 };

  int64_t total = 0;     ///< of the whole run
  int64_t in_row = 0;    ///< up to the last step
  Why why = Why::kNone;  ///< of the latest
};
std::string describe(Skips::Why why);

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

/// Mean cross-entropy, in float32 whatever the logits are.
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& labels,
                         double label_smoothing = 0.0);

/// One optimizer step after the other. A step never waits for the device:
/// learning rate, loss, accuracy, the decision to skip and their counts are
/// tensors there, read when somebody asks.
class TrainStep {
 public:
  TrainStep(std::shared_ptr<models::Model> model, const TrainConfig& config);

  /// Step `step` (from 0) from its `accumulate` batches. Random numbers depend
  /// on (seed, step) alone. Skips the update if loss or gradient is not
  /// finite; after kSkipLimit in a row it skips all that follow.
  void run(int64_t step, std::span<const data::Batch> batches);

  /// Waits for the device.
  Skips skips() const;

  /// Of the steps since the last take_means that were not skipped; NaN if
  /// there was none. Waits for the device.
  struct Means {
    double loss = 0.0;
    double accuracy = 0.0;
  };
  Means take_means();

  /// All that a resumed run needs beside the weights, as views.
  NamedTensors state() const;

  const c10::Device& device() const { return device_; }
  /// Forward and backward of one batch, as run() does them; gives the loss.
  at::Tensor accumulate(int64_t step, int64_t part, const data::Batch& batch);
  void zero_gradients() { optimizer_.zero_gradients(); }

 private:
  std::shared_ptr<models::Model> model_;
  TrainConfig config_;
  Optimizer optimizer_;
  c10::Device device_;
  at::Tensor lr_, loss_, correct_, one_;  ///< of this step; float32 scalars
  at::Tensor skipped_, in_row_, why_;     ///< Skips; float32 scalars
  at::Tensor totals_;  ///< float64: losses, steps, correct samples, samples
};

}  // namespace luna::train
