#pragma once

#include <ATen/core/Tensor.h>

namespace luna::ops {

/// Rows of `table` [V,D] by id: ids [...] int64 -> [...,D]. As at::embedding,
/// but a GPU too forms the table's gradient in an order that does not change:
/// the same bits twice.
at::Tensor lookup(const at::Tensor& table, const at::Tensor& ids);

}  // namespace luna::ops
