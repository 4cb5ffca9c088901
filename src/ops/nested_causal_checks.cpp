#include <string>

#include "ops/autograd.h"
#include "ops/checks.h"
#include "ops/nested_causal_attention.h"

namespace luna::ops {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

constexpr const char* kOp = "nested_causal_attention";
constexpr const char* kStep = "nested_causal_attention_step";

void check_activation(std::string_view op, std::string_view activation) {
  TORCH_CHECK_VALUE(activation == "softplus" || activation == "elu", op,
                    ": expected activation \"softplus\" or \"elu\", got \"",
                    activation, "\"");
}

void check_packed_query(std::string_view op, const Tensor& packed_query,
                        const Tensor& query, const c10::SymInt& sequences) {
  check_heads(op, "packed_query", packed_query);
  check_same_kind(op, "packed_query", packed_query, "query", query);
  check_equal_heads(op, "packed_query", packed_query, query);
  check_size(op, "packed_query", packed_query, 3, query.sym_size(-1),
             "query's width");
  if (packed_query.sym_size(0) == 1) return;
  check_size(op, "packed_query", packed_query, 0, sequences,
             "one for each sequence, or 1 for all");
}

void check_mask(std::string_view op, const OptionalTensor& mask,
                const Tensor& query, const c10::SymInt& sequences,
                const c10::SymInt& slots) {
  if (!mask.has_value()) return;
  TORCH_CHECK_TYPE(mask->scalar_type() == at::kBool, op,
                   ": expected packed_mask of dtype bool, got ",
                   mask->scalar_type());
  TORCH_CHECK_VALUE(mask->dim() == 2 && mask->sym_size(0) == sequences &&
                        mask->sym_size(1) == slots,
                    op, ": expected packed_mask of shape [", sequences, ", ",
                    slots, "], got ", mask->sym_sizes());
  check_same_device(op, "packed_mask", *mask, "query", query);
}

void check_count(std::string_view op, const Tensor& count, const Tensor& query,
                 const c10::SymInt& sequences) {
  TORCH_CHECK_TYPE(count.scalar_type() == at::kLong, op,
                   ": expected count of dtype int64, got ",
                   count.scalar_type());
  TORCH_CHECK_VALUE(count.dim() == 1 && count.sym_size(0) == sequences, op,
                    ": expected count of shape [", sequences, "], got ",
                    count.sym_sizes());
  check_same_device(op, "count", count, "query", query);
}

void check_states(std::string_view op, const Tensor& key_state,
                  const Tensor& value_state, const Tensor& query,
                  const Tensor& value, const c10::SymInt& sequences,
                  const c10::SymInt& slots, std::string_view prefix = "") {
  const c10::SymInt heads = query.sym_size(1);
  const std::string name(prefix);
  if (key_state.defined()) {
    check_state(op, name + "key_state", key_state, query,
                {sequences, heads, query.sym_size(-1), slots});
  }
  if (value_state.defined()) {
    check_state(op, name + "value_state", value_state, query,
                {sequences, heads, slots, value.sym_size(-1)});
  }
}

}  // namespace

void check_nested_causal_attention(
    const Tensor& query, const Tensor& pack_key, const Tensor& key,
    const Tensor& value, const Tensor& packed_query,
    const OptionalTensor& packed_mask, const OptionalTensor& cu_seqlens,
    std::string_view activation, double dropout_p, const OptionalTensor& seed,
    const OptionalTensor& key_state, const OptionalTensor& value_state,
    const OptionalTensor& count) {
  check_heads(kOp, "query", query);
  const auto check_tokens = [&](std::string_view name, const Tensor& x) {
    check_heads(kOp, name, x);
    check_same_kind(kOp, name, x, "query", query);
    check_equal_heads(kOp, name, x, query);
    check_size(kOp, name, x, 0, query.sym_size(0), "query's batch");
    check_size(kOp, name, x, 2, query.sym_size(2), "query's length");
  };
  check_tokens("pack_key", pack_key);
  check_tokens("key", key);
  check_tokens("value", value);
  check_size(kOp, "pack_key", pack_key, 3, query.sym_size(3), "query's width");
  check_size(kOp, "key", key, 3, query.sym_size(3), "query's width");
  if (cu_seqlens.has_value()) {
    check_cu_seqlens(kOp, "cu_seqlens", *cu_seqlens, "query", query);
  }
  const c10::SymInt sequences = nested_causal_sequences(query, cu_seqlens);
  check_packed_query(kOp, packed_query, query, sequences);
  const c10::SymInt slots = packed_query.sym_size(2);
  check_mask(kOp, packed_mask, query, sequences, slots);
  check_activation(kOp, activation);
  check_dropout(kOp, dropout_p, seed, query);
  TORCH_CHECK_VALUE(key_state.has_value() == value_state.has_value() &&
                        key_state.has_value() == count.has_value(),
                    kOp,
                    ": expected key_state, value_state and count, all "
                    "or none, got ",
                    key_state ? "" : "no ", "key_state, ",
                    value_state ? "" : "no ", "value_state, ",
                    count ? "" : "no ", "count");
  if (!key_state.has_value()) return;
  check_states(kOp, *key_state, *value_state, query, value, sequences, slots);
  check_count(kOp, *count, query, sequences);
}

void check_nested_causal_attention_backward(
    const OptionalTensor& grad_output, const OptionalTensor& grad_key_state,
    const OptionalTensor& grad_value_state, const Tensor& query,
    const Tensor& value, const Tensor& packed_query,
    const OptionalTensor& cu_seqlens) {
  if (grad_output.has_value()) {
    check_same_kind(kOp, "grad_output", *grad_output, "query", query);
    const c10::SymInt sizes[] = {query.sym_size(0), query.sym_size(1),
                                 query.sym_size(2), value.sym_size(3)};
    const c10::SymIntArrayRef expected(sizes);
    TORCH_CHECK_VALUE(grad_output->sym_sizes() == expected, kOp,
                      ": expected grad_output of shape ", expected, ", got ",
                      grad_output->sym_sizes());
  }
  check_states(kOp, or_undefined(grad_key_state),
               or_undefined(grad_value_state), query, value,
               nested_causal_sequences(query, cu_seqlens),
               packed_query.sym_size(2), "grad_");
}

void check_nested_causal_attention_step(
    const Tensor& query, const Tensor& pack_key, const Tensor& key,
    const Tensor& value, const Tensor& packed_query, const Tensor& key_state,
    const Tensor& value_state, const Tensor& count,
    const OptionalTensor& packed_mask, std::string_view activation) {
  check_token(kStep, "query", query);
  const auto check_one = [&](std::string_view name, const Tensor& x) {
    check_token(kStep, name, x);
    check_same_kind(kStep, name, x, "query", query);
    check_equal_heads(kStep, name, x, query);
    check_size(kStep, name, x, 0, query.sym_size(0), "query's batch");
  };
  check_one("pack_key", pack_key);
  check_one("key", key);
  check_one("value", value);
  check_size(kStep, "pack_key", pack_key, 2, query.sym_size(2),
             "query's width");
  check_size(kStep, "key", key, 2, query.sym_size(2), "query's width");
  const c10::SymInt batch = query.sym_size(0);
  check_packed_query(kStep, packed_query, query, batch);
  const c10::SymInt slots = packed_query.sym_size(2);
  check_mask(kStep, packed_mask, query, batch, slots);
  check_activation(kStep, activation);
  check_states(kStep, key_state, value_state, query, value, batch, slots);
  check_heads(kStep, "key_state", key_state);
  check_heads(kStep, "value_state", value_state);
  check_count(kStep, count, query, batch);
}

c10::SymInt nested_causal_sequences(const Tensor& query,
                                    const OptionalTensor& cu_seqlens) {
  return cu_seqlens.has_value() ? cu_seqlens->sym_size(0) - 1
                                : query.sym_size(0);
}

}  // namespace luna::ops
