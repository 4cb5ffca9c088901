#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <luna/nn/rff_attention.h>

#include <cmath>

#include "nn/feature_attention.h"
#include "nn/gated_attention.h"

namespace luna::nn {

RffAttentionImpl::RffAttentionImpl(HeadShape shape,
                                   const RffAttentionOptions& options)
    : shape_(shape), options_(options) {
  TORCH_CHECK_VALUE(shape.head_dim >= 1, "rff: expected head_dim >= 1, got ",
                    shape.head_dim);
  config::check_options("rff", options);
  TORCH_CHECK_VALUE(options.features % 2 == 0,
                    "rff: expected an even number of features, got ",
                    options.features);
  RffAttentionImpl::reset();
}

void RffAttentionImpl::reset() {
  random_projection = register_buffer(
      "random_projection", at::randn({options_.features / 2, shape_.head_dim}));
  if (!options_.gate) return;
  gate_weight = register_parameter(
      "gate_weight", at::zeros({shape_.num_heads, shape_.head_dim}));
  gate_bias =
      register_parameter("gate_bias", at::full({shape_.num_heads}, 2.0));
}

/// Before the sigmoid: key [B,H,...,d] -> [B,H,...].
at::Tensor RffAttentionImpl::gate_of(const at::Tensor& key) const {
  const auto weight = gate_weight.to(key.scalar_type());
  const auto bias = gate_bias.to(key.scalar_type());
  if (key.dim() == 3) return (key * weight).sum(-1) + bias;
  return (key * weight.unsqueeze(1)).sum(-1) + bias.unsqueeze(1);
}

at::Tensor RffAttentionImpl::forward(const at::Tensor& x) const {
  // Angles lose their meaning in half precision.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(
      c10::autocast_dispatch_keyset);
  const auto dtype =
      at::promote_types(x.scalar_type(), random_projection.scalar_type());
  const double head_dim = static_cast<double>(shape_.head_dim);
  auto scaled = x.to(dtype);
  scaled = options_.unit
               ? scaled / scaled.norm(2, -1, /*keepdim=*/true).clamp_min(1e-6)
               : scaled * std::pow(head_dim, -0.25);
  const auto angles =
      at::matmul(scaled, random_projection.to(dtype).transpose(0, 1));
  const double scale = std::sqrt(2.0 / static_cast<double>(options_.features));
  return (at::cat({angles.sin(), angles.cos()}, -1) * scale)
      .to(x.scalar_type());
}

std::tuple<at::Tensor, at::Tensor> RffAttentionImpl::attend(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const AttendOptions& options) {
  if (options_.gate) {
    return attend_gated(forward(query), forward(key), value, gate_of(key),
                        options, options_.eps);
  }
  return attend_features(forward(query), forward(key), value, options,
                         options_.eps);
}

at::Tensor RffAttentionImpl::step(const at::Tensor& query,
                                  const at::Tensor& key,
                                  const at::Tensor& value, at::Tensor state,
                                  const StepOptions& options) {
  const auto [q, k] =
      map_token([this](const at::Tensor& x) { return forward(x); }, query, key);
  if (options_.gate) {
    return step_gated(q, k, value, gate_of(key), std::move(state), options,
                      options_.eps);
  }
  return step_features(q, k, value, std::move(state), options, options_.eps);
}

}  // namespace luna::nn
