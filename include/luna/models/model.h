#pragma once

#include <luna/data/batch.h>
#include <luna/data/dataset.h>
#include <luna/models/model_config.h>
#include <torch/nn/module.h>

#include <memory>
#include <string>

namespace luna::models {

/// A model of a classification task: what the trainer trains.
class Model : public torch::nn::Module {
 public:
  /// -> logits [B, classes]
  virtual at::Tensor forward(const data::Batch& batch) = 0;
  /// How this model wants its batches: [CLS] in front or not.
  virtual data::BatchOptions batch_options() const = 0;
  /// Why it cannot read packed sequences; empty if it can.
  virtual std::string refuses_packed() const {
    return "a model that reads padded batches alone";
  }
};

/// The model that a config asks for, initialised from torch's default
/// generator. `longest`: data ids of the longest sequence, for the positions;
/// 0 where max_positions says how many there are.
std::shared_ptr<Model> make_model(const ModelConfig& config,
                                  const data::TaskInfo& task, int64_t longest);

/// Whether the mechanism has an attention map to drop from. The others leave
/// a config's attention_dropout unread: it is part of a recipe they share.
bool has_attention_dropout(const std::string& attention);

}  // namespace luna::models
