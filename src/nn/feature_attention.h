#pragma once

#include <luna/nn/head_attention.h>
#include <luna/ops/linear_attention.h>

#include <utility>

// What every mechanism with features computed outside the op has in common.

namespace luna::nn {

inline std::tuple<at::Tensor, at::Tensor> attend_features(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const AttendOptions& options,
    double eps = ops::LinearAttentionOptions{}.eps) {
  ops::LinearAttentionOptions linear;
  linear.eps = eps;
  linear.key_weight = options.key_weight;
  linear.cu_seqlens_q = options.cu_seqlens_q;
  linear.cu_seqlens_k = options.cu_seqlens_k;
  linear.causal = options.causal;
  linear.state = options.state;
  return ops::linear_attention(query, key, value, linear);
}

/// A token's features of query and key [B,H,d], by one call of `map` where they
/// are the same or lie side by side, as one product leaves them.
template <typename Map>
std::pair<at::Tensor, at::Tensor> map_token(const Map& map,
                                            const at::Tensor& query,
                                            const at::Tensor& key) {
  if (key.is_same(query)) {
    const at::Tensor phi = map(query);
    return {phi, phi};
  }
  const int64_t heads = query.size(1);
  const bool beside =
      key.is_alias_of(query) && key.sizes() == query.sizes() &&
      key.strides() == query.strides() &&
      key.storage_offset() == query.storage_offset() + heads * query.stride(1);
  if (!beside) return {map(query), map(key)};
  auto sizes = query.sizes().vec();
  sizes[1] = 2 * heads;
  const at::Tensor phi =
      map(query.as_strided(sizes, query.strides(), query.storage_offset()));
  return {phi.narrow(1, 0, heads), phi.narrow(1, heads, heads)};
}

inline at::Tensor step_features(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    at::Tensor state, const StepOptions& options,
    double eps = ops::LinearAttentionStepOptions{}.eps) {
  ops::LinearAttentionStepOptions linear;
  linear.eps = eps;
  linear.key_weight = options.key_weight;
  return ops::linear_attention_step(query, key, value, std::move(state),
                                    linear);
}

}  // namespace luna::nn
