#include "ops/checks.h"

#include <ATen/ATen.h>

namespace luna::ops {
namespace {

void check_floating(std::string_view op, std::string_view name,
                    const at::Tensor& x) {
  const auto type = x.scalar_type();
  TORCH_CHECK_TYPE(type == at::kFloat || type == at::kDouble ||
                       type == at::kBFloat16 || type == at::kHalf,
                   op, ": expected ", name,
                   " of dtype float32, float64, bfloat16 or float16, got ",
                   type);
}

void check_rows(std::string_view op, std::string_view name, const at::Tensor& x,
                int64_t rank, std::string_view shape) {
  TORCH_CHECK_VALUE(x.dim() == rank, op, ": expected ", name, " of shape ",
                    shape, ", got ", x.sym_sizes());
  check_floating(op, name, x);
  TORCH_CHECK_VALUE(x.sym_stride(-1) == 1 || x.sym_size(-1) <= 1, op,
                    ": expected ", name,
                    " with unit last stride (call contiguous()), got strides ",
                    x.sym_strides());
}

}  // namespace

void check_heads(std::string_view op, std::string_view name,
                 const at::Tensor& x) {
  check_rows(op, name, x, 4, "[batch, heads, length, width]");
}

void check_token(std::string_view op, std::string_view name,
                 const at::Tensor& x) {
  check_rows(op, name, x, 3, "[batch, heads, width]");
}

void check_same_device(std::string_view op, std::string_view name,
                       const at::Tensor& x, std::string_view like_name,
                       const at::Tensor& like) {
  TORCH_CHECK_VALUE(x.device() == like.device(), op, ": expected ", name,
                    " on ", like.device(), " (", like_name, "'s), got ",
                    x.device());
}

void check_same_kind(std::string_view op, std::string_view name,
                     const at::Tensor& x, std::string_view like_name,
                     const at::Tensor& like) {
  TORCH_CHECK_TYPE(x.scalar_type() == like.scalar_type(), op, ": expected ",
                   name, " of dtype ", like.scalar_type(), " (", like_name,
                   "'s), got ", x.scalar_type());
  check_same_device(op, name, x, like_name, like);
}

void check_size(std::string_view op, std::string_view name, const at::Tensor& x,
                int64_t dim, const c10::SymInt& expected,
                std::string_view what) {
  TORCH_CHECK_VALUE(x.sym_size(dim) == expected, op, ": expected ", name,
                    " of size ", expected, " in dimension ", dim, " (", what,
                    "), got ", x.sym_size(dim), " in shape ", x.sym_sizes());
}

void check_equal_heads(std::string_view op, std::string_view name,
                       const at::Tensor& x, const at::Tensor& query) {
  TORCH_CHECK_VALUE(
      x.sym_size(1) == query.sym_size(1), op, ": expected ", name, " with ",
      query.sym_size(1), " heads (query's), got ", x.sym_size(1),
      "; shared heads must be expanded first: ", name,
      ".repeat_interleave(query heads / ", name, " heads, dim=1)");
}

void check_key_weight(std::string_view op, const at::Tensor& weight,
                      const at::Tensor& like, const c10::SymInt& batch,
                      const c10::SymInt& heads, const c10::SymInt& length) {
  const auto type = weight.scalar_type();
  TORCH_CHECK_TYPE(type == at::kBool || at::isFloatingType(type), op,
                   ": expected key_weight of dtype bool or floating, got ",
                   type);
  const bool per_head = weight.dim() == 3;
  const bool fits = (weight.dim() == 2 || per_head) &&
                    weight.sym_size(0) == batch &&
                    weight.sym_size(-1) == length &&
                    (!per_head || weight.sym_size(1) == heads);
  TORCH_CHECK_VALUE(fits, op, ": expected key_weight of shape [", batch, ", ",
                    length, "] or [", batch, ", ", heads, ", ", length,
                    "], got ", weight.sym_sizes());
  check_same_device(op, "key_weight", weight, "query", like);
}

void check_cu_seqlens(std::string_view op, std::string_view name,
                      const at::Tensor& cu_seqlens,
                      std::string_view packed_name, const at::Tensor& packed) {
  const auto type = cu_seqlens.scalar_type();
  TORCH_CHECK_TYPE(type == at::kInt || type == at::kLong, op, ": expected ",
                   name, " of dtype int32 or int64, got ", type);
  TORCH_CHECK_VALUE(cu_seqlens.dim() == 1 && cu_seqlens.sym_size(0) >= 1, op,
                    ": expected ", name, " of shape [sequences + 1], got ",
                    cu_seqlens.sym_sizes());
  TORCH_CHECK_VALUE(packed.sym_size(0) == 1, op, ": expected ", packed_name,
                    " of batch 1 together with ", name, ", got ",
                    packed.sym_sizes());
  check_same_device(op, name, cu_seqlens, packed_name, packed);
}

void check_state(std::string_view op, std::string_view name,
                 const at::Tensor& state, const at::Tensor& query,
                 c10::SymIntArrayRef sizes) {
  TORCH_CHECK_VALUE(state.sym_sizes() == sizes, op, ": expected ", name,
                    " of shape ", sizes, ", got ", state.sym_sizes());
  TORCH_CHECK_TYPE(state.scalar_type() == compute_dtype(query), op,
                   ": expected ", name, " of dtype ", compute_dtype(query),
                   ", got ", state.scalar_type());
  check_same_device(op, name, state, "query", query);
}

void check_dropout(std::string_view op, double dropout_p,
                   const std::optional<at::Tensor>& seed,
                   const at::Tensor& query) {
  TORCH_CHECK_VALUE(dropout_p >= 0 && dropout_p < 1, op,
                    ": expected dropout_p in [0, 1), got ", dropout_p);
  TORCH_CHECK_VALUE(dropout_p == 0 || seed.has_value(), op,
                    ": expected a seed (int64[2]) with dropout_p = ", dropout_p,
                    ", got none");
  if (!seed.has_value()) return;
  TORCH_CHECK_TYPE(seed->scalar_type() == at::kLong, op,
                   ": expected seed of dtype int64, got ", seed->scalar_type());
  TORCH_CHECK_VALUE(seed->dim() == 1 && seed->sym_size(0) == 2, op,
                    ": expected seed of shape [2], got ", seed->sym_sizes());
  check_same_device(op, "seed", *seed, "query", query);
}

void check_eps(std::string_view op, double eps) {
  TORCH_CHECK_VALUE(eps > 0, op, ": expected eps > 0, got ", eps);
}

void check_weight_values(std::string_view op, const at::Tensor& weight) {
  if (weight.scalar_type() == at::kBool || weight.numel() == 0) return;
  const at::Tensor bad =
      at::isfinite(weight).logical_and_(weight.ge(0)).logical_not_();
  // The host's memory is read as it lies: item() is for those who may wait.
  const at::Tensor any = bad.any();
  if (!*any.const_data_ptr<bool>()) return;
  TORCH_CHECK_VALUE(false, op, ": expected key_weight finite and >= 0, got ",
                    weight.masked_select(bad)[0].item<double>());
}

void check_cu_seqlens_values(std::string_view op, std::string_view name,
                             const at::Tensor& cu_seqlens, int64_t total) {
  const at::Tensor offsets = cu_seqlens.to(at::kLong).contiguous();
  const int64_t* at = offsets.const_data_ptr<int64_t>();
  const int64_t last = offsets.numel() - 1;
  TORCH_CHECK_VALUE(at[0] == 0, op, ": expected ", name, " to start at 0, got ",
                    at[0]);
  for (int64_t i = 1; i <= last; ++i) {
    TORCH_CHECK_VALUE(at[i] >= at[i - 1], op, ": expected ", name,
                      " that never falls, got ", at[i - 1], " then ", at[i],
                      " at index ", i);
  }
  TORCH_CHECK_VALUE(at[last] == total, op, ": expected ", name,
                    " to end at the total length ", total, ", got ", at[last]);
}

}  // namespace luna::ops
