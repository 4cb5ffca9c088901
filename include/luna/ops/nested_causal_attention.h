#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <tuple>

namespace luna::ops {

struct NestedCausalAttentionOptions {
  /// bool [B,l]: which slots of the memory take part (true = does).
  std::optional<at::Tensor> packed_mask;
  /// Packed sequences: B = 1, int32 or int64 [S+1] from 0 to the total.
  std::optional<at::Tensor> cu_seqlens;
  std::string activation = "softplus";  ///< or "elu" (elu(x) + 1)
  std::optional<double> scale;          ///< default d^-1/2
  double dropout_p = 0.0;               ///< on a and on w
  std::optional<at::Tensor> seed;       ///< int64[2], needed when p > 0
  /// Where the sums start: [B,H,d,l], [B,H,l,dv], int64 [B]. All or none.
  std::optional<at::Tensor> key_state, value_state, count;
};

/// Nested attention for decoders: position t sees positions j <= t only.
///
///   a_t = omega( pack_key_t . (s packed_query)^T )            in R^l
///   u_t = (1/t) s q_t . sum_{j<=t} k_j a_j^T,  w_t = softmax_l(u_t)
///   y_t = (1/t) w_t . sum_{j<=t} a_j v_j^T
///
/// omega: softplus to the base 2, log2(1 + 2^x), or elu(x) + 1; t counts from
/// 1 and goes on from `count`.
///
/// query, pack_key, key [B,H,n,d], value [B,H,n,dv],
/// packed_query [B,H,l,d] or [1,H,l,d]
///   -> output [B,H,n,dv], key_state [B,H,d,l] = sum k a^T,
///      value_state [B,H,l,dv] = sum a v^T, count [B] = positions seen.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>
nested_causal_attention(const at::Tensor& query, const at::Tensor& pack_key,
                        const at::Tensor& key, const at::Tensor& value,
                        const at::Tensor& packed_query,
                        const NestedCausalAttentionOptions& options = {});

struct NestedCausalAttentionStepOptions {
  std::optional<at::Tensor> packed_mask;
  std::string activation = "softplus";
  std::optional<double> scale;
};

/// One token: advances key_state, value_state and count in place.
///
/// query, pack_key, key [B,H,d], value [B,H,dv], packed_query [B,H,l,d] or
/// [1,H,l,d] -> [B,H,dv]. For inference: refuses inputs that need a gradient.
at::Tensor nested_causal_attention_step(
    const at::Tensor& query, const at::Tensor& pack_key, const at::Tensor& key,
    const at::Tensor& value, const at::Tensor& packed_query,
    at::Tensor key_state, at::Tensor value_state, at::Tensor count,
    const NestedCausalAttentionStepOptions& options = {});

}  // namespace luna::ops
