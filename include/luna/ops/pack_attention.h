#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace luna::ops {

struct PackAttentionOptions {
  /// [B,m] or [B,H,m]; bool (true = takes part) or float >= 0.
  std::optional<at::Tensor> key_weight;
  /// Packed keys: key and value [1,H,total,.], int32 or int64 [S+1].
  std::optional<at::Tensor> cu_seqlens_k;
  std::optional<double> scale;     ///< default d^-1/2
  double dropout_p = 0.0;          ///< on the probabilities, after the softmax
  std::optional<at::Tensor> seed;  ///< int64[2], needed when dropout_p > 0
};

/// Nested attention's first half: a few queries gather a long sequence.
///
///   p_ij = w_j exp(s q_i . k_j) / sum_j w_j exp(s q_i . k_j),  out = p V
///
/// query [B,H,l,d], or [1,H,l,d] shared by the batch; key [B,H,m,d],
/// value [B,H,m,dv] -> [B,H,l,dv] (S packed sequences: [S,H,l,dv]).
at::Tensor pack_attention(const at::Tensor& query, const at::Tensor& key,
                          const at::Tensor& value,
                          const PackAttentionOptions& options = {});

}  // namespace luna::ops
