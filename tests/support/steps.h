#pragma once

// The step ops as problems: the forward problem of one token from a state,
// computed by the step op on a copy of that state.

#include "support/problems.h"

namespace luna::testing {

/// spec: n = m = 1, not causal, from a state, not packed.
Problem linear_step_problem(const LinearSpec& spec, Random& random);
Problem universal_step_problem(const UniversalSpec& spec, Random& random,
                               at::ScalarType dtype);
Problem nested_step_problem(const NestedSpec& spec, Random& random);

/// Token t of an attention's arguments: [B,H,n,d] -> [B,H,d], and weights.
at::Tensor token(const Arguments& arguments, const std::string& name,
                 int64_t t);
std::optional<at::Tensor> token_weight(const Arguments& arguments, int64_t t);

}  // namespace luna::testing
