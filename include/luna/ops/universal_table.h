#pragma once

#include <ATen/core/Tensor.h>

namespace luna::ops {

/// The scalar networks psi_c of universal attention, as their exact tables.
///
///   psi_c(u) = output_bias[c]
///            + sum_j output_weight[c,j] * relu(hidden_weight[r,j] * u
///                                              + hidden_bias[r,j])
///
/// with r = c, or r = 0 where one trunk is shared by all channels. A ReLU
/// network of one scalar is piecewise linear, so a sorted list of its knots
/// and one (slope, intercept) pair a segment and channel hold all of it.
///
/// hidden_weight, hidden_bias  [L,h] or [1,h]
/// output_weight, output_bias  [L,h], [L]
///
/// The result is a flat cache for the ops below (its layout is in
/// src/ops/universal_table.h); it is never differentiated: gradients go to
/// the parameters.
at::Tensor universal_table(const at::Tensor& hidden_weight,
                           const at::Tensor& hidden_bias,
                           const at::Tensor& output_weight,
                           const at::Tensor& output_bias);

}  // namespace luna::ops
