#pragma once

#include <cmath>

#include "ops/cuda/softmax.h"
#include "ops/cuda/tensors.h"

namespace luna::cuda {

inline double scale_of(const at::Tensor& query, std::optional<double> scale) {
  return scale.value_or(1 / std::sqrt(static_cast<double>(query.size(-1))));
}

inline SoftmaxDropout dropout_of(double p,
                                 const std::optional<at::Tensor>& seed,
                                 ops::DropoutMap map, at::Tensor& holder) {
  SoftmaxDropout dropout;
  if (p == 0) return dropout;
  holder = seed->contiguous();
  dropout.seed = holder.const_data_ptr<int64_t>();
  dropout.map = map;
  dropout.threshold = ops::dropout_threshold(p);
  dropout.scale = 1 / (1 - p);
  return dropout;
}

/// Tokens whose share of the slots' sums one block adds up.
constexpr int64_t kSoftmaxPiece = 512;

}  // namespace luna::cuda
