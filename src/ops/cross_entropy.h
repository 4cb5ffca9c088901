#pragma once

#include <ATen/core/Tensor.h>

// The loss of many classes in one pass over the logits each way. For row z with
// label y, C classes and smoothing s
//
//   loss = log Σ_j exp(z_j) - (1 - s) z_y - s/C Σ_j z_j
//
// and the mean over the rows that have a label.

namespace luna::ops {

struct CrossEntropyOptions {
  int64_t ignored = -100;  ///< the label of rows that do not count
  double smoothing = 0.0;
};

struct CrossEntropy {
  at::Tensor loss;  ///< float32 scalar; NaN where no row has a label
  at::Tensor
      correct;  ///< float32 scalar: rows whose first largest is the label
};

/// logits [N,C] in float32, bfloat16 or float16; labels [N] int64.
CrossEntropy cross_entropy(const at::Tensor& logits, const at::Tensor& labels,
                           const CrossEntropyOptions& options = {});

void check_cross_entropy(const at::Tensor& logits, const at::Tensor& labels,
                         double smoothing);

}  // namespace luna::ops
