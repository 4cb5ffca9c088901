#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <luna/data/dataset.h>

namespace luna::data {

/// A batch's or a data set's labels, [count], in host memory: classes in int64,
/// scores in float32.
inline at::Tensor empty_labels(const TaskInfo& info, int64_t count) {
  return at::empty({count}, info.classes == 1 ? at::kFloat : at::kLong);
}

inline void put_label(const at::Tensor& labels, int64_t i,
                      const Sample& sample) {
  if (labels.is_floating_point()) {
    labels.mutable_data_ptr<float>()[i] = static_cast<float>(sample.score);
  } else {
    labels.mutable_data_ptr<int64_t>()[i] = sample.label;
  }
}

}  // namespace luna::data
