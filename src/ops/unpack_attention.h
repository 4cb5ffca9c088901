#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace luna::ops {

/// What every backend of unpack_attention checks first.
void check_unpack_attention(const at::Tensor& query, const at::Tensor& key,
                            const at::Tensor& value,
                            const std::optional<at::Tensor>& key_weight,
                            const std::optional<at::Tensor>& cu_seqlens_q,
                            double dropout_p,
                            const std::optional<at::Tensor>& seed);

/// And of its backward.
void check_unpack_attention_backward(
    const at::Tensor& grad_output, const at::Tensor& query,
    const at::Tensor& key, const at::Tensor& value,
    const std::optional<at::Tensor>& output,
    const std::optional<at::Tensor>& logsumexp,
    const std::optional<at::Tensor>& key_weight,
    const std::optional<at::Tensor>& cu_seqlens_q, double dropout_p,
    const std::optional<at::Tensor>& seed);

}  // namespace luna::ops
