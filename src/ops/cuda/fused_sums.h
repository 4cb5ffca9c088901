#pragma once

#include <optional>

#include "ops/cuda/feature_rows.h"
#include "ops/linear_sums.h"

namespace luna::cuda {

/// The forward by the fused kernels; nothing where they do not apply (see
/// fused.h for what they take).
std::optional<ops::LinearSumsResult> fused_forward(
    const ops::LinearSums& sums, const Features<float>& features, bool save);

/// And the backward: the op's eleven gradients.
std::optional<std::vector<at::Tensor>> fused_backward_sums(
    const ops::LinearSums& sums, const ops::LinearSumsResult& saved,
    const at::Tensor& grad_output, const std::optional<at::Tensor>& grad_state,
    const Features<float>& features);

}  // namespace luna::cuda
