#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace luna::nn {

/// The option ch_rms: each channel c times min(1, 0.1 / (rms_c + 1e-6)), with
/// rms_c the root mean square of psi_c over all valid tokens and projections.
///
/// phi [B,H,n,M*L] = psi / sqrt(M) ([...,M*L] without a mask);
/// mask [B,n] or [B,H,n], valid where above 0.
at::Tensor scale_channels(const at::Tensor& phi, int64_t channels,
                          const std::optional<at::Tensor>& mask);

}  // namespace luna::nn
