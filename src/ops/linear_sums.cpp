#include "ops/linear_sums.h"

#include <ATen/ATen.h>

#include "ops/checks.h"

namespace luna::ops {

void check_linear_sums(std::string_view op, const LinearSums& sums,
                       const c10::SymInt& features) {
  const at::Tensor &q = sums.query, &k = sums.key, &v = sums.value;
  check_heads(op, "query", q);
  check_heads(op, "key", k);
  check_heads(op, "value", v);
  check_same_kind(op, "key", k, "query", q);
  check_same_kind(op, "value", v, "query", q);
  check_equal_heads(op, "key", k, q);
  check_equal_heads(op, "value", v, q);
  check_size(op, "key", k, 0, q.sym_size(0), "query's batch");
  check_size(op, "value", v, 0, q.sym_size(0), "query's batch");
  check_size(op, "key", k, 3, q.sym_size(3), "query's width");
  check_size(op, "value", v, 2, k.sym_size(2), "key's length");
  check_eps(op, sums.eps);
  TORCH_CHECK_VALUE(
      sums.cu_seqlens_q.has_value() == sums.cu_seqlens_k.has_value(), op,
      ": expected cu_seqlens_q and cu_seqlens_k together, got only ",
      sums.cu_seqlens_q.has_value() ? "cu_seqlens_q" : "cu_seqlens_k");
  const bool on_cpu = q.is_cpu();
  if (sums.packed()) {
    check_cu_seqlens(op, "cu_seqlens_q", *sums.cu_seqlens_q, "query", q);
    check_cu_seqlens(op, "cu_seqlens_k", *sums.cu_seqlens_k, "key", k);
    check_size(op, "cu_seqlens_k", *sums.cu_seqlens_k, 0,
               sums.cu_seqlens_q->sym_size(0), "cu_seqlens_q's");
    if (on_cpu) {
      check_cu_seqlens_values(op, "cu_seqlens_q", *sums.cu_seqlens_q,
                              q.size(2));
      check_cu_seqlens_values(op, "cu_seqlens_k", *sums.cu_seqlens_k,
                              k.size(2));
    }
  }
  if (sums.causal) {
    check_size(op, "key", k, 2, q.sym_size(2), "query's length, for causal");
    if (sums.packed() && on_cpu) {
      TORCH_CHECK_VALUE(
          at::equal(sums.cu_seqlens_q->to(at::kLong),
                    sums.cu_seqlens_k->to(at::kLong)),
          op,
          ": expected equal cu_seqlens_q and cu_seqlens_k with causal, "
          "got ",
          *sums.cu_seqlens_q, " and ", *sums.cu_seqlens_k);
    }
  }
  if (sums.key_weight.has_value()) {
    check_key_weight(op, *sums.key_weight, q, k.sym_size(0), k.sym_size(1),
                     k.sym_size(2));
    if (on_cpu) check_weight_values(op, *sums.key_weight);
  }
  if (sums.state.has_value()) {
    check_state(op, "state", *sums.state, q,
                {sums.sequences(), q.sym_size(1), features, v.sym_size(3) + 1});
  }
}

void check_linear_step(std::string_view op, const at::Tensor& query,
                       const at::Tensor& key, const at::Tensor& value,
                       const at::Tensor& state,
                       const std::optional<at::Tensor>& key_weight, double eps,
                       const c10::SymInt& features) {
  check_token(op, "query", query);
  check_token(op, "key", key);
  check_token(op, "value", value);
  check_same_kind(op, "key", key, "query", query);
  check_same_kind(op, "value", value, "query", query);
  check_equal_heads(op, "key", key, query);
  check_equal_heads(op, "value", value, query);
  check_size(op, "key", key, 0, query.sym_size(0), "query's batch");
  check_size(op, "value", value, 0, query.sym_size(0), "query's batch");
  check_size(op, "key", key, 2, query.sym_size(2), "query's width");
  check_state(
      op, "state", state, query,
      {query.sym_size(0), query.sym_size(1), features, value.sym_size(2) + 1});
  TORCH_CHECK_VALUE(state.is_contiguous(), op,
                    ": expected a contiguous state, got strides ",
                    state.sym_strides());
  check_eps(op, eps);
  if (!key_weight.has_value()) return;
  const bool per_head = key_weight->dim() == 2;
  check_key_weight(
      op, per_head ? key_weight->unsqueeze(2) : key_weight->unsqueeze(-1),
      query, query.sym_size(0), query.sym_size(1), 1);
  if (query.is_cpu()) check_weight_values(op, *key_weight);
}

LinearSumsResult empty_result(const LinearSums& sums,
                              const c10::SymInt& features, bool save) {
  const at::Tensor &q = sums.query, &v = sums.value;
  const auto options = q.options().dtype(compute_dtype(q));
  const auto batch = q.sym_size(0), heads = q.sym_size(1), n = q.sym_size(2),
             width = v.sym_size(3);
  LinearSumsResult result;
  result.output = empty_heads(q, n, width);
  result.state =
      at::empty_symint({sums.sequences(), heads, features, width + 1}, options);
  result.denominator = save && sums.normalize
                           ? at::empty_symint({batch, heads, n}, options)
                           : at::empty_symint({c10::SymInt(0)}, options);
  result.segment_states = save && sums.causal
                              ? at::empty_symint({segment_rows(sums, features),
                                                  heads, features, width + 1},
                                                 options)
                              : at::empty_symint({c10::SymInt(0)}, options);
  return result;
}

}  // namespace luna::ops
