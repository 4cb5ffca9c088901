#pragma once

#include <optional>
#include <vector>

#include "ops/cuda/feature_rows.h"
#include "ops/linear_sums.h"

namespace luna::cuda {

/// The causal forward by the fused kernels; nothing where they do not apply
/// (fused_causal.h). `segment_states` is left as it is: nobody reads it here.
std::optional<ops::LinearSumsResult> causal_forward_sums(
    const ops::LinearSums& sums, const Features<float>& features, bool save);

/// And the backward: the op's eleven gradients.
std::optional<std::vector<at::Tensor>> causal_backward_sums(
    const ops::LinearSums& sums, const ops::LinearSumsResult& saved,
    const at::Tensor& grad_output, const std::optional<at::Tensor>& grad_state,
    const Features<float>& features);

}  // namespace luna::cuda
