#include <luna/ops/unpack_attention.h>

#include "ops/unpack_attention.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <tuple>

#include "ops/autograd.h"
#include "ops/checks.h"
#include "ops/dispatch.h"
#include "ops/gpu_paths.h"
#include "ops/heads.h"

namespace luna::ops {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kOp = "unpack_attention";

c10::SymInt sequences_of(const Tensor& query,
                         const OptionalTensor& cu_seqlens_q) {
  return cu_seqlens_q.has_value() ? cu_seqlens_q->sym_size(0) - 1
                                  : query.sym_size(0);
}

Tensor unpack_attention_meta(const Tensor& query, const Tensor& key,
                             const Tensor& value,
                             const OptionalTensor& key_weight,
                             const OptionalTensor& cu_seqlens_q,
                             std::optional<double>, double dropout_p,
                             const OptionalTensor& seed) {
  check_unpack_attention(query, key, value, key_weight, cu_seqlens_q, dropout_p,
                         seed);
  return empty_heads(query, query.sym_size(2), value.sym_size(3));
}

std::tuple<Tensor, Tensor> forward_meta(
    const Tensor& query, const Tensor& key, const Tensor& value,
    const OptionalTensor& key_weight, const OptionalTensor& cu_seqlens_q,
    std::optional<double> scale, double dropout_p, const OptionalTensor& seed) {
  return {unpack_attention_meta(query, key, value, key_weight, cu_seqlens_q,
                                scale, dropout_p, seed),
          at::empty_symint(query.sym_sizes().slice(0, 3),
                           query.options().dtype(compute_dtype(query)))};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> backward_meta(
    const Tensor& grad_output, const Tensor& query, const Tensor& key,
    const Tensor& value, const OptionalTensor& output,
    const OptionalTensor& logsumexp, const OptionalTensor& key_weight,
    const OptionalTensor& cu_seqlens_q, std::optional<double>, double dropout_p,
    const OptionalTensor& seed, bool weight_gradient) {
  check_unpack_attention_backward(grad_output, query, key, value, output,
                                  logsumexp, key_weight, cu_seqlens_q,
                                  dropout_p, seed);
  return {empty_heads(query), empty_heads(key), empty_heads(value),
          weight_gradient && key_weight.has_value()
              ? at::empty_symint(key_weight->sym_sizes(), key_weight->options())
              : at::empty({0}, query.options())};
}

const auto& public_op() {
  static const auto op =
      find_op<decltype(unpack_attention_meta)>("luna::unpack_attention");
  return op;
}
const auto& forward_op() {
  static const auto op =
      find_op<decltype(forward_meta)>("luna::_unpack_attention_forward");
  return op;
}
const auto& backward_op() {
  static const auto op =
      find_op<decltype(backward_meta)>("luna::unpack_attention_backward");
  return op;
}

/// Whether a GPU's kernels may have a use for the output and the rows'
/// logsumexps in the backward.
bool saves_rows(const Tensor& query, const Tensor& key, const Tensor& value,
                bool weight_gradient) {
  return query.is_cuda() && query.scalar_type() == at::kBFloat16 &&
         !weight_gradient && softmax_wgmma_takes(query.sym_size(3)) &&
         softmax_wgmma_takes(value.sym_size(3)) &&
         key.sym_size(2) > kSoftmaxWgmmaLeastSlots &&
         key.sym_size(2) <= kSoftmaxWgmmaBackwardSlots;
}

// Saves the inputs alone where it can: backward has all keys of a row at hand,
// so it makes the row's softmax anew.
class UnpackAttention : public torch::autograd::Function<UnpackAttention> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& query,
                        const Tensor& key, const Tensor& value,
                        const OptionalTensor& key_weight,
                        const OptionalTensor& cu_seqlens_q,
                        std::optional<double> scale, double dropout_p,
                        const OptionalTensor& seed) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const bool weight_gradient =
        key_weight.has_value() && key_weight->requires_grad();
    Tensor output, logsumexp;
    if (saves_rows(query, key, value, weight_gradient)) {
      std::tie(output, logsumexp) = forward_op().call(
          query, key, value, key_weight, cu_seqlens_q, scale, dropout_p, seed);
    } else {
      output = public_op().call(query, key, value, key_weight, cu_seqlens_q,
                                scale, dropout_p, seed);
    }
    ctx->save_for_backward({query, key, value, or_undefined(key_weight),
                            or_undefined(cu_seqlens_q), or_undefined(seed),
                            logsumexp.defined() ? output : Tensor(),
                            logsumexp});
    ctx->saved_data["scale"] = scale;
    ctx->saved_data["dropout_p"] = dropout_p;
    ctx->saved_data["weight_gradient"] = weight_gradient;
    return output;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const bool weight_gradient = ctx->saved_data["weight_gradient"].toBool();
    auto [query, key, value, weight] = backward_op().call(
        grads[0], saved[0], saved[1], saved[2], or_nullopt(saved[6]),
        or_nullopt(saved[7]), or_nullopt(saved[3]), or_nullopt(saved[4]),
        ctx->saved_data["scale"].toOptional<double>(),
        ctx->saved_data["dropout_p"].toDouble(), or_nullopt(saved[5]),
        weight_gradient);
    return {query,    key,      value,    weight_gradient ? weight : Tensor(),
            Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

Tensor unpack_attention_autograd(const Tensor& query, const Tensor& key,
                                 const Tensor& value,
                                 const OptionalTensor& key_weight,
                                 const OptionalTensor& cu_seqlens_q,
                                 std::optional<double> scale, double dropout_p,
                                 const OptionalTensor& seed) {
  if (any_needs_grad({query, key, value, or_undefined(key_weight)})) {
    return UnpackAttention::apply(query, key, value, key_weight, cu_seqlens_q,
                                  scale, dropout_p, seed);
  }
  const at::AutoDispatchBelowADInplaceOrView guard;
  return public_op().call(query, key, value, key_weight, cu_seqlens_q, scale,
                          dropout_p, seed);
}

std::tuple<Tensor, Tensor> forward_autograd(
    const Tensor& query, const Tensor& key, const Tensor& value,
    const OptionalTensor& key_weight, const OptionalTensor& cu_seqlens_q,
    std::optional<double> scale, double dropout_p, const OptionalTensor& seed) {
  TORCH_CHECK(
      !any_needs_grad({query, key, value, or_undefined(key_weight)}),
      "_unpack_attention_forward has no gradient: call unpack_attention");
  const at::AutoDispatchBelowADInplaceOrView guard;
  return forward_op().call(query, key, value, key_weight, cu_seqlens_q, scale,
                           dropout_p, seed);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> backward_autograd(
    const Tensor& grad_output, const Tensor& query, const Tensor& key,
    const Tensor& value, const OptionalTensor& output,
    const OptionalTensor& logsumexp, const OptionalTensor& key_weight,
    const OptionalTensor& cu_seqlens_q, std::optional<double> scale,
    double dropout_p, const OptionalTensor& seed, bool weight_gradient) {
  refuse_double_backward(kOp,
                         {grad_output, query, key, value, or_undefined(output),
                          or_undefined(logsumexp), or_undefined(key_weight)});
  const at::AutoDispatchBelowADInplaceOrView guard;
  return backward_op().call(grad_output, query, key, value, output, logsumexp,
                            key_weight, cu_seqlens_q, scale, dropout_p, seed,
                            weight_gradient);
}

}  // namespace

void check_unpack_attention(const Tensor& query, const Tensor& key,
                            const Tensor& value,
                            const OptionalTensor& key_weight,
                            const OptionalTensor& cu_seqlens_q,
                            double dropout_p, const OptionalTensor& seed) {
  check_heads(kOp, "query", query);
  check_heads(kOp, "key", key);
  check_heads(kOp, "value", value);
  check_same_kind(kOp, "key", key, "query", query);
  check_same_kind(kOp, "value", value, "query", query);
  check_equal_heads(kOp, "key", key, query);
  check_equal_heads(kOp, "value", value, query);
  check_size(kOp, "key", key, 3, query.sym_size(3), "query's width");
  if (cu_seqlens_q.has_value()) {
    check_cu_seqlens(kOp, "cu_seqlens_q", *cu_seqlens_q, "query", query);
  }
  const c10::SymInt sequences = sequences_of(query, cu_seqlens_q);
  check_size(kOp, "key", key, 0, sequences,
             cu_seqlens_q.has_value() ? "the sequences of cu_seqlens_q"
                                      : "query's batch");
  check_size(kOp, "value", value, 0, sequences, "key's batch");
  check_size(kOp, "value", value, 2, key.sym_size(2), "key's length");
  if (key_weight.has_value()) {
    check_key_weight(kOp, *key_weight, query, sequences, key.sym_size(1),
                     key.sym_size(2));
  }
  check_dropout(kOp, dropout_p, seed, query);
}

void check_unpack_attention_backward(
    const Tensor& grad_output, const Tensor& query, const Tensor& key,
    const Tensor& value, const OptionalTensor& output,
    const OptionalTensor& logsumexp, const OptionalTensor& key_weight,
    const OptionalTensor& cu_seqlens_q, double dropout_p,
    const OptionalTensor& seed) {
  check_unpack_attention(query, key, value, key_weight, cu_seqlens_q, dropout_p,
                         seed);
  check_same_kind(kOp, "grad_output", grad_output, "query", query);
  const c10::SymInt sizes[] = {query.sym_size(0), query.sym_size(1),
                               query.sym_size(2), value.sym_size(3)};
  const c10::SymIntArrayRef expected(sizes);
  TORCH_CHECK_VALUE(grad_output.sym_sizes() == expected, kOp,
                    ": expected grad_output of shape ", expected, ", got ",
                    grad_output.sym_sizes());
  TORCH_CHECK_VALUE(output.has_value() == logsumexp.has_value(), kOp,
                    ": expected output and logsumexp, or neither, got ",
                    output.has_value() ? "output" : "logsumexp", " alone");
  if (!output.has_value()) return;
  check_same_kind(kOp, "output", *output, "query", query);
  TORCH_CHECK_VALUE(output->sym_sizes() == expected, kOp,
                    ": expected output of shape ", expected, ", got ",
                    output->sym_sizes());
  const auto rows = expected.slice(0, 3);
  TORCH_CHECK_VALUE(logsumexp->sym_sizes() == rows, kOp,
                    ": expected logsumexp of shape ", rows, ", got ",
                    logsumexp->sym_sizes());
  TORCH_CHECK_TYPE(logsumexp->scalar_type() == compute_dtype(query), kOp,
                   ": expected logsumexp of ", compute_dtype(query), ", got ",
                   logsumexp->scalar_type());
  TORCH_CHECK_VALUE(logsumexp->device() == query.device(), kOp,
                    ": expected logsumexp on ", query.device(), ", got ",
                    logsumexp->device());
}

Tensor unpack_attention(const Tensor& query, const Tensor& key,
                        const Tensor& value,
                        const UnpackAttentionOptions& options) {
  return public_op().call(query, key, value, options.key_weight,
                          options.cu_seqlens_q, options.scale,
                          options.dropout_p, options.seed);
}

TORCH_LIBRARY_FRAGMENT(luna, m) {
  m.def(
      "unpack_attention(Tensor query, Tensor key, Tensor value, *, "
      "Tensor? key_weight=None, Tensor? cu_seqlens_q=None, "
      "float? scale=None, float dropout_p=0.0, Tensor? seed=None) -> Tensor",
      {at::Tag::pt2_compliant_tag});
  m.def(
      "_unpack_attention_forward(Tensor query, Tensor key, Tensor value, *, "
      "Tensor? key_weight=None, Tensor? cu_seqlens_q=None, "
      "float? scale=None, float dropout_p=0.0, Tensor? seed=None) "
      "-> (Tensor output, Tensor logsumexp)",
      {at::Tag::pt2_compliant_tag});
  m.def(
      "unpack_attention_backward(Tensor grad_output, Tensor query, "
      "Tensor key, Tensor value, *, Tensor? output=None, "
      "Tensor? logsumexp=None, Tensor? key_weight=None, "
      "Tensor? cu_seqlens_q=None, float? scale=None, float dropout_p=0.0, "
      "Tensor? seed=None, bool weight_gradient=False) "
      "-> (Tensor grad_query, Tensor grad_key, Tensor grad_value, "
      "Tensor grad_key_weight)",
      {at::Tag::pt2_compliant_tag});
}

TORCH_LIBRARY_IMPL(luna, Autograd, m) {
  m.impl("unpack_attention", unpack_attention_autograd);
  m.impl("_unpack_attention_forward", forward_autograd);
  m.impl("unpack_attention_backward", backward_autograd);
}

TORCH_LIBRARY_IMPL(luna, Meta, m) {
  m.impl("unpack_attention", unpack_attention_meta);
  m.impl("_unpack_attention_forward", forward_meta);
  m.impl("unpack_attention_backward", backward_meta);
}

}  // namespace luna::ops
