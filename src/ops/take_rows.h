#pragma once

#include <ATen/core/Tensor.h>

namespace luna::ops {

/// Rows `from` [T] of x [R,D] -> [T,D]; int64. `to` [R] says where each went,
/// -1: nowhere. A row of the result that no row went to, a filler, may come
/// from any, and what comes back for it is not added to the gradient. So that
/// is a choice of rows too, and nothing is added up.
at::Tensor take_rows(const at::Tensor& x, const at::Tensor& from,
                     const at::Tensor& to);

}  // namespace luna::ops
