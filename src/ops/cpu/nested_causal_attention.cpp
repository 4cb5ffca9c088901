#include "ops/nested_causal_attention.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include <tuple>

#include "ops/checks.h"
#include "ops/cpu/nested_causal_backward.h"
#include "ops/cpu/nested_causal_forward.h"
#include "ops/heads.h"

namespace luna::cpu {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

constexpr const char* kOp = "nested_causal_attention";

void check_count_values(const char* op, const Tensor& count) {
  for (int64_t i = 0; i < count.size(0); ++i) {
    const int64_t seen = count.accessor<int64_t, 1>()[i];
    TORCH_CHECK_VALUE(seen >= 0, op, ": expected count >= 0, got ", seen);
  }
}

void check_values(const Tensor& query, const OptionalTensor& cu_seqlens,
                  const OptionalTensor& count) {
  if (cu_seqlens.has_value()) {
    ops::check_cu_seqlens_values(kOp, "cu_seqlens", *cu_seqlens, query.size(2));
  }
  if (count.has_value()) check_count_values(kOp, *count);
}

OptionalTensor contiguous(const OptionalTensor& x) {
  return x.has_value() ? OptionalTensor(x->contiguous()) : std::nullopt;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> nested_causal_attention(
    const Tensor& query, const Tensor& pack_key, const Tensor& key,
    const Tensor& value, const Tensor& packed_query,
    const OptionalTensor& packed_mask, const OptionalTensor& cu_seqlens,
    std::string_view activation, std::optional<double> scale, double dropout_p,
    const OptionalTensor& seed, const OptionalTensor& key_state,
    const OptionalTensor& value_state, const OptionalTensor& count) {
  ops::check_nested_causal_attention(
      query, pack_key, key, value, packed_query, packed_mask, cu_seqlens,
      activation, dropout_p, seed, key_state, value_state, count);
  check_values(query, cu_seqlens, count);
  const int64_t sequences =
      ops::nested_causal_sequences(query, cu_seqlens).expect_int();
  const auto state_options = query.options().dtype(ops::compute_dtype(query));
  Tensor output = ops::empty_heads(query, query.size(2), value.size(3));
  Tensor new_key_state =
      at::empty({sequences, query.size(1), query.size(3), packed_query.size(2)},
                state_options);
  Tensor new_value_state =
      at::empty({sequences, query.size(1), packed_query.size(2), value.size(3)},
                state_options);
  // Held here: the inputs point into them.
  const OptionalTensor first_key_state = contiguous(key_state),
                       first_value_state = contiguous(value_state);
  Tensor new_count = at::empty({sequences}, query.options().dtype(at::kLong));
  dispatch_compute(query, [&]<typename T>() {
    const NestedCausalInputs<T> inputs(
        query, pack_key, key, value, packed_query, packed_mask, cu_seqlens,
        activation, scale_of(query, scale), dropout_p, seed, first_key_state,
        first_value_state, count);
    NestedCausalForward<T>(inputs, output, new_key_state, new_value_state)
        .run();
    for (int64_t s = 0; s < sequences; ++s) {
      new_count.data_ptr<int64_t>()[s] =
          inputs.counts[s] + inputs.sequences[s].query_length;
    }
  });
  return {output, new_key_state, new_value_state, new_count};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>
nested_causal_attention_backward(
    const OptionalTensor& grad_output, const OptionalTensor& grad_key_state,
    const OptionalTensor& grad_value_state, const Tensor& query,
    const Tensor& pack_key, const Tensor& key, const Tensor& value,
    const Tensor& packed_query, const OptionalTensor& packed_mask,
    const OptionalTensor& cu_seqlens, std::string_view activation,
    std::optional<double> scale, double dropout_p, const OptionalTensor& seed,
    const OptionalTensor& key_state, const OptionalTensor& value_state,
    const OptionalTensor& count) {
  ops::check_nested_causal_attention(
      query, pack_key, key, value, packed_query, packed_mask, cu_seqlens,
      activation, dropout_p, seed, key_state, value_state, count);
  ops::check_nested_causal_attention_backward(grad_output, grad_key_state,
                                              grad_value_state, query, value,
                                              packed_query, cu_seqlens);
  check_values(query, cu_seqlens, count);
  const auto like_state = [&](const OptionalTensor& x) {
    return x.has_value() ? at::empty(x->sizes(), x->options())
                         : at::empty({0}, query.options());
  };
  const Tensor gradient = grad_output.has_value()
                              ? with_unit_stride(*grad_output)
                              : at::zeros({query.size(0), query.size(1),
                                           query.size(2), value.size(3)},
                                          query.options());
  // Held here: the inputs point into them.
  const OptionalTensor first_key_state = contiguous(key_state),
                       first_value_state = contiguous(value_state);
  Tensor grad_first_key = like_state(key_state);
  Tensor grad_first_value = like_state(value_state);
  std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gradients;
  dispatch_compute(query, [&]<typename T>() {
    typename NestedCausalBackward<T>::Gradients g = {
        ops::empty_heads(query),
        ops::empty_heads(pack_key),
        ops::empty_heads(key),
        ops::empty_heads(value),
        ops::empty_heads(packed_query),
        Tensor(),
        Tensor()};
    if (key_state.has_value()) {
      g.key_state = grad_first_key;
      g.value_state = grad_first_value;
    }
    const NestedCausalInputs<T> inputs(
        query, pack_key, key, value, packed_query, packed_mask, cu_seqlens,
        activation, scale_of(query, scale), dropout_p, seed, first_key_state,
        first_value_state, count);
    const Tensor none;
    NestedCausalBackward<T>(inputs, gradient,
                            contiguous(grad_key_state).value_or(none),
                            contiguous(grad_value_state).value_or(none), g)
        .run();
    gradients = {g.query, g.pack_key, g.key, g.value, g.packed_query};
  });
  return std::tuple_cat(gradients,
                        std::make_tuple(grad_first_key, grad_first_value));
}

template <typename T>
void step(const Tensor& query, const Tensor& pack_key, const Tensor& key,
          const Tensor& value, const Tensor& packed_query,
          const Tensor& key_state, const Tensor& value_state,
          const Tensor& count, const OptionalTensor& packed_mask,
          std::string_view activation, double scale, Tensor& output) {
  const Rows<T> queries = Rows<T>::token(query),
                pack_keys = Rows<T>::token(pack_key),
                keys = Rows<T>::token(key), values = Rows<T>::token(value),
                outputs = Rows<T>::token(output), packed(packed_query, true),
                key_sums(key_state), value_sums(value_state);
  const int64_t batch = query.size(0), heads = query.size(1);
  const int64_t d = query.size(2), dv = value.size(2);
  const int64_t slots = packed_query.size(2), columns = padded(slots);
  const Activation omega = activation_of(activation);
  const Tensor weights = slot_weights<T>(packed_mask, batch, slots);
  const auto seen = count.accessor<int64_t, 1>();
  const auto& tiles = tile_kernels<T>();
  const auto& softmax = softmax_kernels<T>();
  // A thread is worth waking for about this many numbers of state.
  const int64_t grain =
      std::max<int64_t>(1, (int64_t{1} << 16) / ((d + dv) * columns + 1));
  at::parallel_for(0, batch * heads, grain, [&](int64_t begin, int64_t end) {
    Scratch<T> scratch(slots * d + 4 * d + 2 * dv + 2 * columns);
    T* packed_buffer = scratch.take(slots * d);
    T* q = scratch.take(d);
    T* key_buffer = scratch.take(d);
    T* pack_key_buffer = scratch.take(d);
    T* query_buffer = scratch.take(d);
    T* value_buffer = scratch.take(dv);
    T* out = scratch.take(dv);
    T* a = scratch.take(columns);
    T* w = scratch.take(columns);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t b = i / heads, h = i % heads;
      const T inverse = T(1) / static_cast<T>(seen[b] + 1);
      const Tile<T> pq = packed.read(b, h, 0, slots, packed_buffer);
      const Tile<T> pk = pack_keys.read(b, h, 0, 1, pack_key_buffer);
      std::fill_n(a, columns, T(0));
      tiles.row_dots(slots, d, pq.data, pq.stride, pk.data, 0, a);
      for (int64_t j = 0; j < slots; ++j) a[j] *= static_cast<T>(scale);
      softmax.activate(omega, 1, columns, a, columns, nullptr, 0, nullptr);
      const Tile<T> q_row = queries.read(b, h, 0, 1, query_buffer);
      const T factor = static_cast<T>(scale * kLog2E) * inverse;
      for (int64_t j = 0; j < d; ++j) q[j] = factor * q_row.data[j];
      std::fill_n(w, columns, T(0));
      softmax.advance(d, slots, keys.read(b, h, 0, 1, key_buffer).data, a,
                      key_sums.in_place(b, h, 0), key_sums.row_stride(), q, w);
      softmax.rows_forward(1, columns, w, columns,
                           weights.defined()
                               ? weights.const_data_ptr<T>() + b * columns
                               : nullptr,
                           false, nullptr);
      std::fill_n(out, dv, T(0));
      softmax.advance(slots, dv, a, values.read(b, h, 0, 1, value_buffer).data,
                      value_sums.in_place(b, h, 0), value_sums.row_stride(), w,
                      out);
      tiles.scale_rows(1, dv, out, dv, &inverse);
      outputs.write(b, h, 0, 1, out, dv);
    }
  });
}

Tensor nested_causal_attention_step(
    const Tensor& query, const Tensor& pack_key, const Tensor& key,
    const Tensor& value, const Tensor& packed_query, const Tensor& key_state,
    const Tensor& value_state, const Tensor& count,
    const OptionalTensor& packed_mask, std::string_view activation,
    std::optional<double> scale) {
  ops::check_nested_causal_attention_step(query, pack_key, key, value,
                                          packed_query, key_state, value_state,
                                          count, packed_mask, activation);
  check_count_values("nested_causal_attention_step", count);
  Tensor output =
      at::empty({query.size(0), query.size(1), value.size(2)}, query.options());
  dispatch_compute(query, [&]<typename T>() {
    step<T>(query, pack_key, key, value, packed_query, key_state, value_state,
            count, packed_mask, activation, scale_of(query, scale), output);
  });
  auto seen = count.accessor<int64_t, 1>();
  for (int64_t b = 0; b < count.size(0); ++b) seen[b] += 1;
  return output;
}

TORCH_LIBRARY_IMPL(luna, CPU, m) {
  m.impl("nested_causal_attention", nested_causal_attention);
  m.impl("nested_causal_attention_backward", nested_causal_attention_backward);
  m.impl("nested_causal_attention_step", nested_causal_attention_step);
}

}  // namespace
}  // namespace luna::cpu
