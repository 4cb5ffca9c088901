#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace luna::ops {

/// The six learned tensors of universal attention's feature map.
struct FeatureMapParameters {
  at::Tensor projection;       ///< W [M,d], or [H,M,d]: one per head
  at::Tensor projection_bias;  ///< b [M] or [H,M]
  at::Tensor hidden_weight;    ///< [L,h], or [1,h]: a trunk all channels share
  at::Tensor hidden_bias;      ///< as hidden_weight
  at::Tensor output_weight;    ///< [L,h]
  at::Tensor output_bias;      ///< [L]
};

struct FeatureMapOptions {
  bool nonneg = true;               ///< ReLU on psi's output
  std::optional<at::Tensor> table;  ///< universal_table(...), if at hand
};

/// phi(x) = [psi_c(w_i . x + b_i)]_{i,c} / sqrt(M),  M-major.
///
/// x [..., d] ([B,H,n,d] for a projection per head) -> [..., M*L], x's dtype.
at::Tensor feature_map(const at::Tensor& x,
                       const FeatureMapParameters& parameters,
                       const FeatureMapOptions& options = {});

}  // namespace luna::ops
