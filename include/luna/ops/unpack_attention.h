#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace luna::ops {

struct UnpackAttentionOptions {
  /// [B,l] or [B,H,l]; bool (true = takes part) or float >= 0.
  std::optional<at::Tensor> key_weight;
  /// Packed queries: query [1,H,total,d], int32 or int64 [S+1]; key and value
  /// then have S in place of B.
  std::optional<at::Tensor> cu_seqlens_q;
  std::optional<double> scale;     ///< default d^-1/2
  double dropout_p = 0.0;          ///< on the probabilities, after the softmax
  std::optional<at::Tensor> seed;  ///< int64[2], needed when dropout_p > 0
};

/// Nested attention's second half: a long sequence reads a short memory.
///
///   p_ij = w_j exp(s q_i . k_j) / sum_j w_j exp(s q_i . k_j),  out = p V
///
/// query [B,H,n,d], key [B,H,l,d], value [B,H,l,dv] -> [B,H,n,dv].
at::Tensor unpack_attention(const at::Tensor& query, const at::Tensor& key,
                            const at::Tensor& value,
                            const UnpackAttentionOptions& options = {});

}  // namespace luna::ops
