#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace luna::ops {

struct LinearAttentionOptions {
  /// [B,m] or [B,H,m]; bool (true = takes part) or float >= 0.
  std::optional<at::Tensor> key_weight;
  /// Packed sequences: B = 1, int32 or int64 [S+1] from 0 to the total.
  std::optional<at::Tensor> cu_seqlens_q, cu_seqlens_k;
  bool causal = false;
  bool normalize = true;  ///< false: plain sums, no denominator
  double eps = 1e-6;
  std::optional<at::Tensor> state;  ///< where the sums start
};

/// Linear attention over features that are given.
///
///   S = S_0 + sum_j w_j k_j [v_j, 1]^T
///   out_t = q_t . S_t[:, :dv] / guard(q_t . S_t[:, dv])
///
/// (see universal_attention.h for S_t and the guard).
/// query [B,H,n,F], key [B,H,m,F], value [B,H,m,dv]
///   -> output [B,H,n,dv], state [B,H,F,dv+1] (S packed sequences: [S,...])
std::tuple<at::Tensor, at::Tensor> linear_attention(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const LinearAttentionOptions& options = {});

struct LinearAttentionStepOptions {
  std::optional<at::Tensor> key_weight;  ///< [B] or [B,H]
  bool normalize = true;
  double eps = 1e-6;
};

/// One token: adds key [value, 1]^T to `state` in place, then attends.
///
/// query, key [B,H,F], value [B,H,dv], state [B,H,F,dv+1] -> [B,H,dv].
/// For inference: refuses inputs that require a gradient.
at::Tensor linear_attention_step(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    at::Tensor state, const LinearAttentionStepOptions& options = {});

}  // namespace luna::ops
