#pragma once

#include <luna/ops/feature_map.h>

#include <tuple>

namespace luna::ops {

struct UniversalAttentionOptions {
  /// [B,m] or [B,H,m]; bool (true = takes part) or float >= 0.
  std::optional<at::Tensor> key_weight;
  /// Packed sequences: B = 1, int32 or int64 [S+1] from 0 to the total.
  std::optional<at::Tensor> cu_seqlens_q, cu_seqlens_k;
  bool causal = false;
  bool nonneg = true;
  double eps = 1e-6;                ///< guard of the denominator
  std::optional<at::Tensor> state;  ///< where the sums start
  std::optional<at::Tensor> table;  ///< universal_table(...), if at hand
};

/// Attention with the learned kernel phi(q) . phi(k), linear in n.
///
///   S = S_0 + sum_j w_j phi(k_j) [v_j, 1]^T
///   out_t = phi(q_t) . S_t[:, :dv] / guard(phi(q_t) . S_t[:, dv])
///
/// with S_t the sum up to t where causal, else the whole sum;
/// guard(x) = sign(x) max(|x|, eps), a constant to the gradient where it holds.
///
/// query [B,H,n,d], key [B,H,m,d], value [B,H,m,dv]
///   -> output [B,H,n,dv], state [B,H,M*L,dv+1] (S packed sequences: [S,...])
std::tuple<at::Tensor, at::Tensor> universal_attention(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const FeatureMapParameters& parameters,
    const UniversalAttentionOptions& options = {});

struct UniversalAttentionStepOptions {
  std::optional<at::Tensor> key_weight;  ///< [B] or [B,H]
  bool nonneg = true;
  double eps = 1e-6;
  std::optional<at::Tensor> table;
};

/// One token: adds phi(key) [value, 1]^T to `state` in place, then attends.
///
/// query, key [B,H,d], value [B,H,dv], state [B,H,M*L,dv+1] -> [B,H,dv].
/// For inference: refuses inputs that require a gradient.
at::Tensor universal_attention_step(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    at::Tensor state, const FeatureMapParameters& parameters,
    const UniversalAttentionStepOptions& options = {});

}  // namespace luna::ops
