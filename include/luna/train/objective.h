#pragma once

#include <ATen/core/Tensor.h>
#include <luna/data/batch.h>

#include <functional>

namespace luna::train {

/// What a step makes of a batch.
struct Learnt {
  at::Tensor logits;
  at::Tensor loss;       ///< a scalar, to be lowered
  at::Tensor correct{};  ///< right ones; undefined: the logits tell
};

/// For who learns more than the labels. Runs in the step's autocast, on a
/// device as part of its CUDA graph.
using Objective = std::function<Learnt(const data::Batch& batch)>;

}  // namespace luna::train
