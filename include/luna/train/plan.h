#pragma once

#include <luna/train/trainer.h>

#include <string>
#include <vector>

namespace luna::train {

/// What a run would be, found out without training.
struct Plan {
  struct Part {
    std::string name{};  ///< embedding, layers.0, ..., head
    int64_t parameters = 0;
  };
  struct Rate {
    int64_t step = 0;
    double lr = 0.0;
  };

  std::vector<Part> parts{};
  int64_t parameters = 0;
  int64_t length = 0;  ///< of the longest sequence, in tokens
  int64_t epoch = 0;   ///< steps that see the training data once
  /// Weights, gradients and the optimizer's moments.
  int64_t fixed_bytes = 0;
  /// What a step allocates beside them: measured on one and two samples of
  /// full length on the CPU, as a line in the batch.
  int64_t step_bytes = 0;
  std::vector<Rate> schedule{};
};

Plan make_plan(const TrainConfig& config, const Splits& splits);

}  // namespace luna::train
