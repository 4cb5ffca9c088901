#include "luna/bench/plain_formula.h"

#include <ATen/ATen.h>

#include <cmath>

namespace luna::bench {
namespace {

at::Tensor phi(const at::Tensor& x, const ops::FeatureMapParameters& p) {
  const at::Tensor u = at::linear(x, p.projection, p.projection_bias);
  const at::Tensor hidden =
      at::relu(u.unsqueeze(-1).unsqueeze(-1) * p.hidden_weight + p.hidden_bias);
  const at::Tensor psi =
      at::relu((hidden * p.output_weight).sum(-1) + p.output_bias);
  return psi.flatten(-2) / std::sqrt(static_cast<double>(u.size(-1)));
}

}  // namespace

at::Tensor plain_formula(const at::Tensor& query, const at::Tensor& key,
                         const at::Tensor& value,
                         const ops::FeatureMapParameters& parameters) {
  const at::Tensor phi_q = phi(query, parameters);
  const at::Tensor phi_k = phi(key, parameters);
  const at::Tensor sums = at::matmul(phi_k.transpose(-1, -2), value);
  const at::Tensor normaliser = phi_k.sum(-2).unsqueeze(-1);
  return at::matmul(phi_q, sums) /
         at::matmul(phi_q, normaliser).clamp_min(1e-6);
}

std::int64_t plain_formula_bytes(std::int64_t tokens,
                                 const ops::FeatureMapParameters& parameters,
                                 bool backward) {
  const std::int64_t hidden = tokens * parameters.projection.size(-2) *
                              parameters.output_weight.numel() *
                              parameters.output_weight.element_size();
  // Forward: two intermediates and the result of an elementwise step.
  // Backward: the hidden layers of q and k are kept beside them.
  return hidden * (backward ? 5 : 3);
}

}  // namespace luna::bench
