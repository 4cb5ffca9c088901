#pragma once

#include "ops/cuda/tensors.h"
#include "ops/linear_sums.h"

// Linear attention over features that are in memory, from the parts of
// linear_sums.h.

namespace luna::cuda {

/// phi_query [B,H,n,F], phi_key [B,H,m,F]: of any dtype.
ops::LinearSumsResult forward_sums(const ops::LinearSums& sums,
                                   const at::Tensor& phi_query,
                                   const at::Tensor& phi_key, bool save);

struct SumsGradients {
  at::Tensor value, key_weight, state;  ///< undefined where not wanted
};

/// Writes the features' gradients to grad_phi_query and grad_phi_key, or puts
/// tensors of the same kind in their place.
SumsGradients backward_sums(
    const ops::LinearSums& sums, const ops::LinearSumsResult& saved,
    const at::Tensor& grad_output, const std::optional<at::Tensor>& grad_state,
    const at::Tensor& phi_query, const at::Tensor& phi_key,
    at::Tensor& grad_phi_query, at::Tensor& grad_phi_key);

}  // namespace luna::cuda
