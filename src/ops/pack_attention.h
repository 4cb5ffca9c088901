#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace luna::ops {

/// What every backend of pack_attention checks first.
void check_pack_attention(const at::Tensor& query, const at::Tensor& key,
                          const at::Tensor& value,
                          const std::optional<at::Tensor>& key_weight,
                          const std::optional<at::Tensor>& cu_seqlens_k,
                          double dropout_p,
                          const std::optional<at::Tensor>& seed);

/// Whether the output is rounded to fewer bits than it was computed with.
/// The gradient then needs it as it was before: it goes into a difference
/// that nearly cancels where a slot attends to few keys.
inline bool is_rounded(const at::Tensor& query) {
  return query.scalar_type() == at::kHalf ||
         query.scalar_type() == at::kBFloat16;
}

/// And of its backward: `output` before rounding, `stats` as forward
/// returned them.
void check_pack_attention_backward(
    const at::Tensor& grad_output, const at::Tensor& query,
    const at::Tensor& key, const at::Tensor& value, const at::Tensor& output,
    const at::Tensor& stats, const std::optional<at::Tensor>& key_weight,
    const std::optional<at::Tensor>& cu_seqlens_k, double dropout_p,
    const std::optional<at::Tensor>& seed);

/// Sequences: the packed ones, or the batch.
c10::SymInt pack_attention_sequences(
    const at::Tensor& key, const std::optional<at::Tensor>& cu_seqlens_k);

}  // namespace luna::ops
