#include <luna/ops/pack_attention.h>

#include "ops/pack_attention.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <tuple>

#include "ops/autograd.h"
#include "ops/checks.h"
#include "ops/dispatch.h"
#include "ops/heads.h"

namespace luna::ops {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kOp = "pack_attention";

std::tuple<Tensor, Tensor, Tensor> forward_meta(
    const Tensor& query, const Tensor& key, const Tensor& value,
    const OptionalTensor& key_weight, const OptionalTensor& cu_seqlens_k,
    std::optional<double>, double dropout_p, const OptionalTensor& seed) {
  check_pack_attention(query, key, value, key_weight, cu_seqlens_k, dropout_p,
                       seed);
  const c10::SymInt sequences = pack_attention_sequences(key, cu_seqlens_k);
  const auto compute = query.options().dtype(compute_dtype(query));
  const Tensor output = at::empty_symint(
      {sequences, query.sym_size(1), query.sym_size(2), value.sym_size(3)},
      query.options());
  return {output,
          is_rounded(query) ? at::empty_symint(output.sym_sizes(), compute)
                            : at::empty({0}, compute),
          at::empty_symint({2, sequences, query.sym_size(1), query.sym_size(2)},
                           compute)};
}

Tensor pack_attention_meta(const Tensor& query, const Tensor& key,
                           const Tensor& value,
                           const OptionalTensor& key_weight,
                           const OptionalTensor& cu_seqlens_k,
                           std::optional<double> scale, double dropout_p,
                           const OptionalTensor& seed) {
  return std::get<0>(forward_meta(query, key, value, key_weight, cu_seqlens_k,
                                  scale, dropout_p, seed));
}

std::tuple<Tensor, Tensor, Tensor, Tensor> backward_meta(
    const Tensor& grad_output, const Tensor& query, const Tensor& key,
    const Tensor& value, const Tensor& output, const Tensor& stats,
    const OptionalTensor& key_weight, const OptionalTensor& cu_seqlens_k,
    std::optional<double>, double dropout_p, const OptionalTensor& seed,
    bool weight_gradient) {
  check_pack_attention_backward(grad_output, query, key, value, output, stats,
                                key_weight, cu_seqlens_k, dropout_p, seed);
  return {empty_heads(query), empty_heads(key), empty_heads(value),
          weight_gradient && key_weight.has_value()
              ? at::empty_symint(key_weight->sym_sizes(), key_weight->options())
              : at::empty({0}, query.options())};
}

const auto& public_op() {
  static const auto op =
      find_op<decltype(pack_attention_meta)>("luna::pack_attention");
  return op;
}
const auto& forward_op() {
  static const auto op =
      find_op<decltype(forward_meta)>("luna::_pack_attention_forward");
  return op;
}
const auto& backward_op() {
  static const auto op =
      find_op<decltype(backward_meta)>("luna::pack_attention_backward");
  return op;
}

class PackAttention : public torch::autograd::Function<PackAttention> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& query,
                        const Tensor& key, const Tensor& value,
                        const OptionalTensor& key_weight,
                        const OptionalTensor& cu_seqlens_k,
                        std::optional<double> scale, double dropout_p,
                        const OptionalTensor& seed) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    auto [output, unrounded, stats] = forward_op().call(
        query, key, value, key_weight, cu_seqlens_k, scale, dropout_p, seed);
    ctx->save_for_backward({query, key, value,
                            is_rounded(query) ? unrounded : output, stats,
                            or_undefined(key_weight),
                            or_undefined(cu_seqlens_k), or_undefined(seed)});
    ctx->saved_data["scale"] = scale;
    ctx->saved_data["dropout_p"] = dropout_p;
    ctx->saved_data["weight_gradient"] =
        key_weight.has_value() && key_weight->requires_grad();
    return output;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const bool weight_gradient = ctx->saved_data["weight_gradient"].toBool();
    auto [query, key, value, weight] =
        backward_op().call(grads[0], saved[0], saved[1], saved[2], saved[3],
                           saved[4], or_nullopt(saved[5]), or_nullopt(saved[6]),
                           ctx->saved_data["scale"].toOptional<double>(),
                           ctx->saved_data["dropout_p"].toDouble(),
                           or_nullopt(saved[7]), weight_gradient);
    return {query,    key,      value,    weight_gradient ? weight : Tensor(),
            Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

Tensor pack_attention_autograd(const Tensor& query, const Tensor& key,
                               const Tensor& value,
                               const OptionalTensor& key_weight,
                               const OptionalTensor& cu_seqlens_k,
                               std::optional<double> scale, double dropout_p,
                               const OptionalTensor& seed) {
  if (any_needs_grad({query, key, value, or_undefined(key_weight)})) {
    return PackAttention::apply(query, key, value, key_weight, cu_seqlens_k,
                                scale, dropout_p, seed);
  }
  const at::AutoDispatchBelowADInplaceOrView guard;
  return public_op().call(query, key, value, key_weight, cu_seqlens_k, scale,
                          dropout_p, seed);
}

std::tuple<Tensor, Tensor, Tensor> forward_autograd(
    const Tensor& query, const Tensor& key, const Tensor& value,
    const OptionalTensor& key_weight, const OptionalTensor& cu_seqlens_k,
    std::optional<double> scale, double dropout_p, const OptionalTensor& seed) {
  TORCH_CHECK(!any_needs_grad({query, key, value, or_undefined(key_weight)}),
              "_pack_attention_forward has no gradient: call pack_attention");
  const at::AutoDispatchBelowADInplaceOrView guard;
  return forward_op().call(query, key, value, key_weight, cu_seqlens_k, scale,
                           dropout_p, seed);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> backward_autograd(
    const Tensor& grad_output, const Tensor& query, const Tensor& key,
    const Tensor& value, const Tensor& output, const Tensor& stats,
    const OptionalTensor& key_weight, const OptionalTensor& cu_seqlens_k,
    std::optional<double> scale, double dropout_p, const OptionalTensor& seed,
    bool weight_gradient) {
  refuse_double_backward(kOp, {grad_output, query, key, value, output, stats,
                               or_undefined(key_weight)});
  const at::AutoDispatchBelowADInplaceOrView guard;
  return backward_op().call(grad_output, query, key, value, output, stats,
                            key_weight, cu_seqlens_k, scale, dropout_p, seed,
                            weight_gradient);
}

}  // namespace

void check_pack_attention(const Tensor& query, const Tensor& key,
                          const Tensor& value, const OptionalTensor& key_weight,
                          const OptionalTensor& cu_seqlens_k, double dropout_p,
                          const OptionalTensor& seed) {
  check_heads(kOp, "query", query);
  check_heads(kOp, "key", key);
  check_heads(kOp, "value", value);
  check_same_kind(kOp, "key", key, "query", query);
  check_same_kind(kOp, "value", value, "query", query);
  check_equal_heads(kOp, "key", key, query);
  check_equal_heads(kOp, "value", value, query);
  check_size(kOp, "key", key, 3, query.sym_size(3), "query's width");
  check_size(kOp, "value", value, 0, key.sym_size(0), "key's batch");
  check_size(kOp, "value", value, 2, key.sym_size(2), "key's length");
  if (cu_seqlens_k.has_value()) {
    check_cu_seqlens(kOp, "cu_seqlens_k", *cu_seqlens_k, "key", key);
  }
  const c10::SymInt sequences = pack_attention_sequences(key, cu_seqlens_k);
  if (query.sym_size(0) != 1) {
    check_size(kOp, "query", query, 0, sequences,
               cu_seqlens_k.has_value()
                   ? "the sequences of cu_seqlens_k, or 1 for all"
                   : "key's batch, or 1 for all");
  }
  if (key_weight.has_value()) {
    check_key_weight(kOp, *key_weight, query, key.sym_size(0), key.sym_size(1),
                     key.sym_size(2));
  }
  check_dropout(kOp, dropout_p, seed, query);
}

void check_pack_attention_backward(
    const Tensor& grad_output, const Tensor& query, const Tensor& key,
    const Tensor& value, const Tensor& output, const Tensor& stats,
    const OptionalTensor& key_weight, const OptionalTensor& cu_seqlens_k,
    double dropout_p, const OptionalTensor& seed) {
  check_pack_attention(query, key, value, key_weight, cu_seqlens_k, dropout_p,
                       seed);
  const c10::SymInt sequences = pack_attention_sequences(key, cu_seqlens_k);
  check_same_kind(kOp, "grad_output", grad_output, "query", query);
  const c10::SymInt sizes[] = {sequences, query.sym_size(1), query.sym_size(2),
                               value.sym_size(3)};
  const c10::SymIntArrayRef expected(sizes);
  TORCH_CHECK_VALUE(grad_output.sym_sizes() == expected, kOp,
                    ": expected grad_output of shape ", expected, ", got ",
                    grad_output.sym_sizes());
  check_state(kOp, "output", output, query, expected);
  const c10::SymInt stats_sizes[] = {2, sequences, query.sym_size(1),
                                     query.sym_size(2)};
  check_state(kOp, "stats", stats, query, stats_sizes);
}

c10::SymInt pack_attention_sequences(const Tensor& key,
                                     const OptionalTensor& cu_seqlens_k) {
  return cu_seqlens_k.has_value() ? cu_seqlens_k->sym_size(0) - 1
                                  : key.sym_size(0);
}

Tensor pack_attention(const Tensor& query, const Tensor& key,
                      const Tensor& value,
                      const PackAttentionOptions& options) {
  return public_op().call(query, key, value, options.key_weight,
                          options.cu_seqlens_k, options.scale,
                          options.dropout_p, options.seed);
}

// `unrounded`: the output before it is rounded to a short dtype, else empty.
// `stats` [2,B,H,l]: for each slot the greatest score (to the base 2) and
// 1 / sum of 2^(score - greatest); both 0 where it saw no key.
TORCH_LIBRARY_FRAGMENT(luna, m) {
  m.def(
      "pack_attention(Tensor query, Tensor key, Tensor value, *, "
      "Tensor? key_weight=None, Tensor? cu_seqlens_k=None, "
      "float? scale=None, float dropout_p=0.0, Tensor? seed=None) -> Tensor",
      {at::Tag::pt2_compliant_tag});
  m.def(
      "_pack_attention_forward(Tensor query, Tensor key, Tensor value, *, "
      "Tensor? key_weight=None, Tensor? cu_seqlens_k=None, "
      "float? scale=None, float dropout_p=0.0, Tensor? seed=None) "
      "-> (Tensor output, Tensor unrounded, Tensor stats)",
      {at::Tag::pt2_compliant_tag});
  m.def(
      "pack_attention_backward(Tensor grad_output, Tensor query, Tensor key, "
      "Tensor value, Tensor output, Tensor stats, *, "
      "Tensor? key_weight=None, Tensor? cu_seqlens_k=None, "
      "float? scale=None, float dropout_p=0.0, Tensor? seed=None, "
      "bool weight_gradient=False) "
      "-> (Tensor grad_query, Tensor grad_key, Tensor grad_value, "
      "Tensor grad_key_weight)",
      {at::Tag::pt2_compliant_tag});
}

TORCH_LIBRARY_IMPL(luna, Autograd, m) {
  m.impl("pack_attention", pack_attention_autograd);
  m.impl("_pack_attention_forward", forward_autograd);
  m.impl("pack_attention_backward", backward_autograd);
}

TORCH_LIBRARY_IMPL(luna, Meta, m) {
  m.impl("pack_attention", pack_attention_meta);
  m.impl("_pack_attention_forward", forward_meta);
  m.impl("pack_attention_backward", backward_meta);
}

}  // namespace luna::ops
