#pragma once

#include <luna/data/tasks.h>
#include <luna/models/parameter_counts.h>
#include <luna/train/train_config.h>

#include <vector>

namespace luna::train {

/// What a run would be, found out without training.
struct Plan {
  struct Rate {
    int64_t step = 0;
    double lr = 0.0;
  };

  models::ParameterCounts parameters{};
  int64_t length = 0;  ///< of the longest sequence, in tokens
  /// Steps that see the training data once; 0 of translation, whose steps count
  /// tokens.
  int64_t epoch = 0;
  /// Weights, gradients and the optimizer's moments.
  int64_t fixed_bytes = 0;
  /// What a step allocates beside them: measured on one and two samples of
  /// full length on the CPU, as a line in the batch.
  int64_t step_bytes = 0;
  std::vector<Rate> schedule{};
};

Plan make_plan(const TrainConfig& config, const data::TaskFacts& facts);

}  // namespace luna::train
