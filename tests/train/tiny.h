#pragma once

// A task, a model and a config so small that a run takes milliseconds.

#include <luna/train/trainer.h>

#include <functional>
#include <string>

namespace luna::testing {

/// Sequences of 3 to 6 ids below 8; the class says whether they are below 4.
std::shared_ptr<data::Dataset> tiny_data(int64_t samples, uint64_t seed);
train::Splits tiny_splits();

/// Mean of embeddings, dropout, a hidden layer, logits.
class TinyModel : public models::Model {
 public:
  explicit TinyModel(double dropout = 0.1);
  at::Tensor forward(const data::Batch& batch) override;
  data::BatchOptions batch_options() const override { return {}; }
  std::string refuses_packed() const override { return {}; }

  /// Multiplies what `hidden` gives in training, when set.
  std::function<at::Tensor(const at::Tensor&)> disturb{};

 private:
  double dropout_;
  at::Tensor table_;
  std::shared_ptr<torch::nn::Module> hidden_, head_;
};

/// 12 steps of 4 samples; a validation every 4, a checkpoint every 3, a line
/// every 2.
train::TrainConfig tiny_config();
train::TrainOptions tiny_options(const std::string& folder);

/// A path of this process alone, at which nothing is.
std::string fresh_folder(const std::string& name);

/// metrics.jsonl without what depends on the clock.
std::string metrics_without_times(const std::string& folder);

/// All bytes of a file.
std::string bytes_of(const std::string& path);

}  // namespace luna::testing
