#include <luna/ops/nested_causal_attention.h>

#include "ops/nested_causal_attention.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

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
using Results = std::tuple<Tensor, Tensor, Tensor, Tensor>;
using Gradients =
    std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

constexpr const char* kOp = "nested_causal_attention";
constexpr const char* kStep = "nested_causal_attention_step";

Results nested_causal_attention_meta(
    const Tensor& query, const Tensor& pack_key, const Tensor& key,
    const Tensor& value, const Tensor& packed_query,
    const OptionalTensor& packed_mask, const OptionalTensor& cu_seqlens,
    std::string_view activation, std::optional<double>, double dropout_p,
    const OptionalTensor& seed, const OptionalTensor& key_state,
    const OptionalTensor& value_state, const OptionalTensor& count) {
  check_nested_causal_attention(query, pack_key, key, value, packed_query,
                                packed_mask, cu_seqlens, activation, dropout_p,
                                seed, key_state, value_state, count);
  const c10::SymInt sequences = nested_causal_sequences(query, cu_seqlens);
  const c10::SymInt heads = query.sym_size(1), slots = packed_query.sym_size(2);
  const auto state_options = query.options().dtype(compute_dtype(query));
  return {empty_heads(query, query.sym_size(2), value.sym_size(3)),
          at::empty_symint({sequences, heads, query.sym_size(3), slots},
                           state_options),
          at::empty_symint({sequences, heads, slots, value.sym_size(3)},
                           state_options),
          at::empty_symint({sequences}, query.options().dtype(at::kLong))};
}

Gradients backward_meta(
    const OptionalTensor& grad_output, const OptionalTensor& grad_key_state,
    const OptionalTensor& grad_value_state, const Tensor& query,
    const Tensor& pack_key, const Tensor& key, const Tensor& value,
    const Tensor& packed_query, const OptionalTensor& packed_mask,
    const OptionalTensor& cu_seqlens, std::string_view activation,
    std::optional<double>, double dropout_p, const OptionalTensor& seed,
    const OptionalTensor& key_state, const OptionalTensor& value_state,
    const OptionalTensor& count) {
  check_nested_causal_attention(query, pack_key, key, value, packed_query,
                                packed_mask, cu_seqlens, activation, dropout_p,
                                seed, key_state, value_state, count);
  check_nested_causal_attention_backward(grad_output, grad_key_state,
                                         grad_value_state, query, value,
                                         packed_query, cu_seqlens);
  const auto like_state = [&](const OptionalTensor& x) {
    return x.has_value() ? at::empty_symint(x->sym_sizes(), x->options())
                         : at::empty({0}, query.options());
  };
  return {empty_heads(query),        empty_heads(pack_key),
          empty_heads(key),          empty_heads(value),
          empty_heads(packed_query), like_state(key_state),
          like_state(value_state)};
}

Tensor step_meta(const Tensor& query, const Tensor& pack_key, const Tensor& key,
                 const Tensor& value, const Tensor& packed_query,
                 const Tensor& key_state, const Tensor& value_state,
                 const Tensor& count, const OptionalTensor& packed_mask,
                 std::string_view activation, std::optional<double>) {
  check_nested_causal_attention_step(query, pack_key, key, value, packed_query,
                                     key_state, value_state, count, packed_mask,
                                     activation);
  return at::empty_symint(
      {query.sym_size(0), query.sym_size(1), value.sym_size(2)},
      query.options());
}

const auto& public_op() {
  static const auto op = find_op<decltype(nested_causal_attention_meta)>(
      "luna::nested_causal_attention");
  return op;
}
const auto& backward_op() {
  static const auto op = find_op<decltype(backward_meta)>(
      "luna::nested_causal_attention_backward");
  return op;
}
const auto& step_op() {
  static const auto op =
      find_op<decltype(step_meta)>("luna::nested_causal_attention_step");
  return op;
}

// Saves the inputs alone: backward makes the chunks' sums anew.
class NestedCausalAttention
    : public torch::autograd::Function<NestedCausalAttention> {
 public:
  static variable_list forward(
      AutogradContext* ctx, const Tensor& query, const Tensor& pack_key,
      const Tensor& key, const Tensor& value, const Tensor& packed_query,
      const OptionalTensor& packed_mask, const OptionalTensor& cu_seqlens,
      const std::string& activation, std::optional<double> scale,
      double dropout_p, const OptionalTensor& seed,
      const OptionalTensor& key_state, const OptionalTensor& value_state,
      const OptionalTensor& count) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    auto [output, new_key_state, new_value_state, new_count] = public_op().call(
        query, pack_key, key, value, packed_query, packed_mask, cu_seqlens,
        activation, scale, dropout_p, seed, key_state, value_state, count);
    ctx->save_for_backward({query, pack_key, key, value, packed_query,
                            or_undefined(packed_mask), or_undefined(cu_seqlens),
                            or_undefined(seed), or_undefined(key_state),
                            or_undefined(value_state), or_undefined(count)});
    ctx->saved_data["activation"] = activation;
    ctx->saved_data["scale"] = scale;
    ctx->saved_data["dropout_p"] = dropout_p;
    ctx->mark_non_differentiable({new_count});
    ctx->set_materialize_grads(false);
    return {output, new_key_state, new_value_state, new_count};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    auto [query, pack_key, key, value, packed_query, key_state, value_state] =
        backward_op().call(
            or_nullopt(grads[0]), or_nullopt(grads[1]), or_nullopt(grads[2]),
            saved[0], saved[1], saved[2], saved[3], saved[4],
            or_nullopt(saved[5]), or_nullopt(saved[6]),
            ctx->saved_data["activation"].toStringRef(),
            ctx->saved_data["scale"].toOptional<double>(),
            ctx->saved_data["dropout_p"].toDouble(), or_nullopt(saved[7]),
            or_nullopt(saved[8]), or_nullopt(saved[9]), or_nullopt(saved[10]));
    const bool has_state = saved[8].defined();
    const Tensor none;
    return {query,
            pack_key,
            key,
            value,
            packed_query,
            none,
            none,
            none,
            none,
            none,
            none,
            has_state ? key_state : none,
            has_state ? value_state : none,
            none};
  }
};

Results nested_causal_attention_autograd(
    const Tensor& query, const Tensor& pack_key, const Tensor& key,
    const Tensor& value, const Tensor& packed_query,
    const OptionalTensor& packed_mask, const OptionalTensor& cu_seqlens,
    std::string_view activation, std::optional<double> scale, double dropout_p,
    const OptionalTensor& seed, const OptionalTensor& key_state,
    const OptionalTensor& value_state, const OptionalTensor& count) {
  if (any_needs_grad({query, pack_key, key, value, packed_query,
                      or_undefined(key_state), or_undefined(value_state)})) {
    const variable_list results = NestedCausalAttention::apply(
        query, pack_key, key, value, packed_query, packed_mask, cu_seqlens,
        std::string(activation), scale, dropout_p, seed, key_state, value_state,
        count);
    return {results[0], results[1], results[2], results[3]};
  }
  const at::AutoDispatchBelowADInplaceOrView guard;
  return public_op().call(query, pack_key, key, value, packed_query,
                          packed_mask, cu_seqlens, activation, scale, dropout_p,
                          seed, key_state, value_state, count);
}

Gradients backward_autograd(
    const OptionalTensor& grad_output, const OptionalTensor& grad_key_state,
    const OptionalTensor& grad_value_state, const Tensor& query,
    const Tensor& pack_key, const Tensor& key, const Tensor& value,
    const Tensor& packed_query, const OptionalTensor& packed_mask,
    const OptionalTensor& cu_seqlens, std::string_view activation,
    std::optional<double> scale, double dropout_p, const OptionalTensor& seed,
    const OptionalTensor& key_state, const OptionalTensor& value_state,
    const OptionalTensor& count) {
  refuse_double_backward(
      kOp, {or_undefined(grad_output), or_undefined(grad_key_state),
            or_undefined(grad_value_state), query, pack_key, key, value,
            packed_query, or_undefined(key_state), or_undefined(value_state)});
  const at::AutoDispatchBelowADInplaceOrView guard;
  return backward_op().call(grad_output, grad_key_state, grad_value_state,
                            query, pack_key, key, value, packed_query,
                            packed_mask, cu_seqlens, activation, scale,
                            dropout_p, seed, key_state, value_state, count);
}

Tensor step_autograd(const Tensor& query, const Tensor& pack_key,
                     const Tensor& key, const Tensor& value,
                     const Tensor& packed_query, const Tensor& key_state,
                     const Tensor& value_state, const Tensor& count,
                     const OptionalTensor& packed_mask,
                     std::string_view activation, std::optional<double> scale) {
  refuse_grad_in_step(kStep, {query, pack_key, key, value, packed_query,
                              key_state, value_state});
  Tensor output;
  {
    const at::AutoDispatchBelowADInplaceOrView guard;
    output =
        step_op().call(query, pack_key, key, value, packed_query, key_state,
                       value_state, count, packed_mask, activation, scale);
  }
  for (const Tensor& written : {key_state, value_state, count}) {
    mark_written(written);
  }
  return output;
}

}  // namespace

Results nested_causal_attention(const Tensor& query, const Tensor& pack_key,
                                const Tensor& key, const Tensor& value,
                                const Tensor& packed_query,
                                const NestedCausalAttentionOptions& options) {
  return public_op().call(
      query, pack_key, key, value, packed_query, options.packed_mask,
      options.cu_seqlens, options.activation, options.scale, options.dropout_p,
      options.seed, options.key_state, options.value_state, options.count);
}

Tensor nested_causal_attention_step(
    const Tensor& query, const Tensor& pack_key, const Tensor& key,
    const Tensor& value, const Tensor& packed_query, Tensor key_state,
    Tensor value_state, Tensor count,
    const NestedCausalAttentionStepOptions& options) {
  return step_op().call(query, pack_key, key, value, packed_query, key_state,
                        value_state, count, options.packed_mask,
                        options.activation, options.scale);
}

TORCH_LIBRARY_FRAGMENT(luna, m) {
  m.def(
      "nested_causal_attention(Tensor query, Tensor pack_key, Tensor key, "
      "Tensor value, Tensor packed_query, *, Tensor? packed_mask=None, "
      "Tensor? cu_seqlens=None, str activation=\"softplus\", "
      "float? scale=None, float dropout_p=0.0, Tensor? seed=None, "
      "Tensor? key_state=None, Tensor? value_state=None, "
      "Tensor? count=None) -> (Tensor output, Tensor key_state, "
      "Tensor value_state, Tensor count)",
      {at::Tag::pt2_compliant_tag});
  m.def(
      "nested_causal_attention_backward(Tensor? grad_output, "
      "Tensor? grad_key_state, Tensor? grad_value_state, Tensor query, "
      "Tensor pack_key, Tensor key, Tensor value, Tensor packed_query, *, "
      "Tensor? packed_mask=None, Tensor? cu_seqlens=None, "
      "str activation=\"softplus\", float? scale=None, "
      "float dropout_p=0.0, Tensor? seed=None, Tensor? key_state=None, "
      "Tensor? value_state=None, Tensor? count=None) "
      "-> (Tensor grad_query, Tensor grad_pack_key, Tensor grad_key, "
      "Tensor grad_value, Tensor grad_packed_query, "
      "Tensor grad_first_key_state, Tensor grad_first_value_state)",
      {at::Tag::pt2_compliant_tag});
  m.def(
      "nested_causal_attention_step(Tensor query, Tensor pack_key, "
      "Tensor key, Tensor value, Tensor packed_query, "
      "Tensor(a!) key_state, Tensor(b!) value_state, Tensor(c!) count, *, "
      "Tensor? packed_mask=None, str activation=\"softplus\", "
      "float? scale=None) -> Tensor",
      {at::Tag::pt2_compliant_tag});
}

TORCH_LIBRARY_IMPL(luna, Autograd, m) {
  m.impl("nested_causal_attention", nested_causal_attention_autograd);
  m.impl("nested_causal_attention_backward", backward_autograd);
  m.impl("nested_causal_attention_step", step_autograd);
}

TORCH_LIBRARY_IMPL(luna, Meta, m) {
  m.impl("nested_causal_attention", nested_causal_attention_meta);
  m.impl("nested_causal_attention_backward", backward_meta);
  m.impl("nested_causal_attention_step", step_meta);
}

}  // namespace luna::ops
