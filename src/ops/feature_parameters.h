#pragma once

#include <ATen/core/Tensor.h>
#include <luna/ops/feature_map.h>

#include <string_view>

#include "ops/universal_table.h"

// The six parameters of the feature map, as every op that takes them checks
// them.

namespace luna::ops {

/// hidden_* [L,h] or [1,h], output_weight [L,h], output_bias [L].
void check_psi(std::string_view op, const at::Tensor& hidden_weight,
               const at::Tensor& hidden_bias, const at::Tensor& output_weight,
               const at::Tensor& output_bias);

/// All six beside x [..., d], which the op calls `x_name`; a projection per
/// head needs x [B,H,n,d] (`head_dim`: where x has its heads). `table`, if
/// given, must fit.
void check_feature_parameters(std::string_view op, std::string_view x_name,
                              const at::Tensor& x, int64_t head_dim,
                              const FeatureMapParameters& parameters,
                              const std::optional<at::Tensor>& table);

/// x [..., d], at least [d]; floating, unit last stride.
void check_feature_input(std::string_view op, const at::Tensor& x);

/// `table` where given, else universal_table of the parameters in the dtype
/// that sums over x have.
at::Tensor table_or_built(const at::Tensor& x,
                          const FeatureMapParameters& parameters,
                          const std::optional<at::Tensor>& table);

UniversalTableLayout table_layout(const at::Tensor& hidden_weight,
                                  const at::Tensor& output_weight);

/// M * L.
c10::SymInt feature_count(const FeatureMapParameters& parameters);

}  // namespace luna::ops
