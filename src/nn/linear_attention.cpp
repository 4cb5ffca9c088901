#include <ATen/ATen.h>
#include <luna/nn/linear_attention.h>

#include "nn/feature_attention.h"

namespace luna::nn {

at::Tensor LinearAttentionImpl::forward(const at::Tensor& x) const {
  return at::elu(x) + 1;
}

std::tuple<at::Tensor, at::Tensor> LinearAttentionImpl::attend(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const AttendOptions& options) {
  return attend_features(forward(query), forward(key), value, options);
}

at::Tensor LinearAttentionImpl::step(const at::Tensor& query,
                                     const at::Tensor& key,
                                     const at::Tensor& value, at::Tensor state,
                                     const StepOptions& options) {
  const auto [q, k] =
      map_token([this](const at::Tensor& x) { return forward(x); }, query, key);
  return step_features(q, k, value, std::move(state), options);
}

}  // namespace luna::nn
