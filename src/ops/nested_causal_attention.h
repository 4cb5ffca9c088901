#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string_view>

namespace luna::ops {

/// What every backend of nested_causal_attention checks first.
void check_nested_causal_attention(
    const at::Tensor& query, const at::Tensor& pack_key, const at::Tensor& key,
    const at::Tensor& value, const at::Tensor& packed_query,
    const std::optional<at::Tensor>& packed_mask,
    const std::optional<at::Tensor>& cu_seqlens, std::string_view activation,
    double dropout_p, const std::optional<at::Tensor>& seed,
    const std::optional<at::Tensor>& key_state,
    const std::optional<at::Tensor>& value_state,
    const std::optional<at::Tensor>& count);

/// And of its backward, besides: gradients of the outputs, each or none.
void check_nested_causal_attention_backward(
    const std::optional<at::Tensor>& grad_output,
    const std::optional<at::Tensor>& grad_key_state,
    const std::optional<at::Tensor>& grad_value_state, const at::Tensor& query,
    const at::Tensor& value, const at::Tensor& packed_query,
    const std::optional<at::Tensor>& cu_seqlens);

/// And of one step.
void check_nested_causal_attention_step(
    const at::Tensor& query, const at::Tensor& pack_key, const at::Tensor& key,
    const at::Tensor& value, const at::Tensor& packed_query,
    const at::Tensor& key_state, const at::Tensor& value_state,
    const at::Tensor& count, const std::optional<at::Tensor>& packed_mask,
    std::string_view activation);

/// Sequences: the packed ones, or the batch.
c10::SymInt nested_causal_sequences(
    const at::Tensor& query, const std::optional<at::Tensor>& cu_seqlens);

}  // namespace luna::ops
