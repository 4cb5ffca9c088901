#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace luna::nn {

/// psi's two layers: psi_c(u) = sum_j output_weight[c,j]
/// relu(hidden_weight[c,j] u + hidden_bias[c,j]) + output_bias[c].
struct PsiParameters {
  at::Tensor hidden_weight, hidden_bias;  ///< [L,hidden], or [1,hidden]
  at::Tensor output_weight;               ///< [L,hidden]
  at::Tensor output_bias;                 ///< [L]
};

/// Sets them in place as an option `start` of the feature map says:
///   torch  U(+-1/sqrt(fan in)), as Linear(1, hidden) and Linear(hidden, 1) do
///   tents  psi_c is 1 at c's place among L equal steps from -2 to 2, 0 from
///          the neighbours' places on; the outermost stay 1 outwards: each u
///          lights one or two channels, none is dead
///   exp    psi_c(u) = min(exp(a_c u), 20), a_c = -1/2, 1/2, -1, 1, -3/2 ...
/// The last two interpolate between knots that lie about evenly over
/// [-4, 4], with slope 0 beyond.
void start_psi(const std::string& start, const PsiParameters& psi);

}  // namespace luna::nn
