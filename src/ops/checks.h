#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <optional>
#include <string_view>

// What every backend of every op checks first, stated once. Each function
// takes the op's name and the argument's, and speaks of values:
// "pack_attention: expected key of width 64 (query's), got 32". Sizes are
// symbolic, so that the same checks serve the Meta kernels.

namespace luna::ops {

/// A rank-4 floating tensor [batch, heads, length, width], unit last stride.
void check_heads(std::string_view op, std::string_view name,
                 const at::Tensor& x);
/// The same for one token: [batch, heads, width].
void check_token(std::string_view op, std::string_view name,
                 const at::Tensor& x);
/// `x` has `like`'s dtype and device.
void check_same_kind(std::string_view op, std::string_view name,
                     const at::Tensor& x, std::string_view like_name,
                     const at::Tensor& like);
/// `x` stands on `like`'s device.
void check_same_device(std::string_view op, std::string_view name,
                       const at::Tensor& x, std::string_view like_name,
                       const at::Tensor& like);
/// x.size(dim) == expected; `what` says where `expected` comes from.
void check_size(std::string_view op, std::string_view name, const at::Tensor& x,
                int64_t dim, const c10::SymInt& expected,
                std::string_view what);
/// Equal head counts; fewer key heads: says to expand them.
void check_equal_heads(std::string_view op, std::string_view name,
                       const at::Tensor& x, const at::Tensor& query);
/// [batch, length] or [batch, heads, length]; bool or floating.
void check_key_weight(std::string_view op, const at::Tensor& weight,
                      const at::Tensor& like, const c10::SymInt& batch,
                      const c10::SymInt& heads, const c10::SymInt& length);
/// int32 or int64 [S+1] for a tensor of batch 1.
void check_cu_seqlens(std::string_view op, std::string_view name,
                      const at::Tensor& cu_seqlens,
                      std::string_view packed_name, const at::Tensor& packed);
/// A state tensor: exactly these sizes, float32 (float64 for float64 inputs).
void check_state(std::string_view op, std::string_view name,
                 const at::Tensor& state, const at::Tensor& query,
                 c10::SymIntArrayRef sizes);
/// p in [0, 1); seed int64[2] on the op's device where p > 0.
void check_dropout(std::string_view op, double dropout_p,
                   const std::optional<at::Tensor>& seed,
                   const at::Tensor& query);
void check_eps(std::string_view op, double eps);

/// Value checks, CPU tensors only: weights finite and >= 0; offsets that
/// start at 0, never fall and end at `total`.
void check_weight_values(std::string_view op, const at::Tensor& weight);
void check_cu_seqlens_values(std::string_view op, std::string_view name,
                             const at::Tensor& cu_seqlens, int64_t total);

/// float64 for float64 inputs, else float32: the dtype of sums and states.
inline at::ScalarType compute_dtype(const at::Tensor& query) {
  return query.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

}  // namespace luna::ops
