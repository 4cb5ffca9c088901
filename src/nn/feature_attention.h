#pragma once

#include <luna/nn/head_attention.h>
#include <luna/ops/linear_attention.h>

#include <utility>

// What every mechanism with features computed outside the op has in common.

namespace luna::nn {

inline std::tuple<at::Tensor, at::Tensor> attend_features(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const AttendOptions& options) {
  ops::LinearAttentionOptions linear;
  linear.key_weight = options.key_weight;
  linear.cu_seqlens_q = options.cu_seqlens_q;
  linear.cu_seqlens_k = options.cu_seqlens_k;
  linear.causal = options.causal;
  linear.state = options.state;
  return ops::linear_attention(query, key, value, linear);
}

inline at::Tensor step_features(const at::Tensor& query, const at::Tensor& key,
                                const at::Tensor& value, at::Tensor state,
                                const StepOptions& options) {
  ops::LinearAttentionStepOptions linear;
  linear.key_weight = options.key_weight;
  return ops::linear_attention_step(query, key, value, std::move(state),
                                    linear);
}

}  // namespace luna::nn
