#pragma once

#include "luna/ops/feature_map.h"

namespace luna::bench {

/// Universal attention as its paper lists it, in plain ATen: every hidden
/// unit of every psi of every token in memory. The peer that luna's kernels
/// are held against.
///
/// query [B,H,n,d], key [B,H,m,d], value [B,H,m,dv] -> [B,H,n,dv]
at::Tensor plain_formula(const at::Tensor& query, const at::Tensor& key,
                         const at::Tensor& value,
                         const ops::FeatureMapParameters& parameters);

/// Bytes it needs at once for `tokens` (batch x length x heads), about.
std::int64_t plain_formula_bytes(std::int64_t tokens,
                                 const ops::FeatureMapParameters& parameters,
                                 bool backward);

}  // namespace luna::bench
