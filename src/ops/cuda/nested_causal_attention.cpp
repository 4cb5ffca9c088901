// nested_causal_attention on the GPU: two causal sums (linear_sums.h) with a
// softmax between them,
//
//   U = q . sum k a^T,  w = softmax(s U / t),  y = w . sum a v^T / t.
//
// The maps a, U, w [n, l] are in memory for the length of a call; those that
// tensor cores take (nested_calls.h) need none.

#include "ops/nested_causal_attention.h"

#include <torch/library.h>

#include <algorithm>

#include "ops/cuda/linear_sums.h"
#include "ops/cuda/nested.h"
#include "ops/cuda/nested_calls.h"
#include "ops/cuda/softmax_problem.h"
#include "ops/heads.h"

namespace luna::cuda {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

enum { kTiles, kPieces };

/// One causal sum, sum_j key_j value_j^T read by queries, and its gradients.
template <typename T>
struct CausalSum {
  const Sequences& tokens;
  int64_t heads, depth, width;
  Operand<T> query, key, value;
  at::TensorOptions options;
  cudaStream_t stream;

  Tensor parts_of(const Operand<T>& a, const Operand<T>& b) const {
    const Cut pieces = tokens.cut(kPieces);
    Tensor parts = at::empty({pieces.bound, heads, depth, width}, options);
    outer_sums<T>(
        {pieces, heads, depth, width, width, a, b, {}, parts.data_ptr<T>()},
        stream);
    return parts;
  }
  /// parts become what stands before (after) each piece; the whole to `total`.
  void scan(Tensor& parts, const Tensor& start, Tensor* total,
            bool backwards) const {
    AddParts<T> add = {};
    add.pieces = tokens.cut(kPieces);
    add.heads = heads;
    add.size = depth * width;
    add.parts = parts.data_ptr<T>();
    add.start = start.defined() ? start.const_data_ptr<T>() : nullptr;
    add.total = total != nullptr ? total->data_ptr<T>() : nullptr;
    add.scan = true;
    add.backwards = backwards;
    add_parts(add, stream);
  }
  Apply<T> apply(const Tensor& states, bool transposed) const {
    Apply<T> a = {};
    a.tiles = tokens.cut(kTiles);
    a.pieces = tokens.cut(kPieces);
    a.heads = heads;
    a.causal = true;
    a.transposed = transposed;
    a.depth = transposed ? width : depth;
    a.width = transposed ? depth : width;
    a.sums = states.const_data_ptr<T>();
    a.sums_size = depth * width;
    a.ld = width;
    return a;
  }
  Tensor states(const Tensor& start, Tensor* total) const {
    Tensor parts = parts_of(key, value);
    scan(parts, start, total, false);
    return parts;
  }
  /// The gradient's sums, read by keys and values.
  Tensor rests(const Operand<T>& gradient, const Tensor& start,
               Tensor* total) const {
    Tensor parts = parts_of(query, gradient);
    scan(parts, start, total, true);
    return parts;
  }
  void forward(const Tensor& states, const Factor<T>& factor,
               const Rows& out) const {
    Apply<T> a = apply(states, false);
    a.x = query;
    a.y = key;
    a.z = value;
    a.out_factor = factor;
    a.out = out;
    apply_sums(a, stream);
  }
  void grad_query(const Tensor& states, const Operand<T>& gradient,
                  const Rows& out) const {
    Apply<T> a = apply(states, true);
    a.x = gradient;
    a.y = value;
    a.z = key;
    a.out = out;
    apply_sums(a, stream);
  }
  void grad_key(const Tensor& rests, const Operand<T>& gradient,
                const Rows& out) const {
    Apply<T> a = apply(rests, true);
    a.backwards = true;
    a.x = value;
    a.y = gradient;
    a.z = query;
    a.out = out;
    apply_sums(a, stream);
  }
  void grad_value(const Tensor& rests, const Operand<T>& gradient,
                  const Rows& out) const {
    Apply<T> a = apply(rests, false);
    a.backwards = true;
    a.x = key;
    a.y = query;
    a.z = gradient;
    a.out = out;
    apply_sums(a, stream);
  }
};

OptionalTensor contiguous(const OptionalTensor& x) {
  return x.has_value() ? OptionalTensor(x->contiguous()) : std::nullopt;
}

/// What forward and backward share.
template <typename T>
struct Nested {
  explicit Nested(const NestedInputs& in)
      : in(in),
        heads(in.query.size(1)),
        n(in.query.size(2)),
        slots(in.packed_query.size(2)),
        depth(in.query.size(3)),
        width(in.value.size(3)),
        tokens(in.query, in.cu_seqlens, in.query.size(0), n,
               {64, std::max<int64_t>(256, (2 * slots + 63) / 64 * 64)}),
        options(in.query.options().dtype(ops::compute_dtype(in.query))),
        stream(c10::cuda::getCurrentCUDAStream()),
        mask(contiguous(in.packed_mask)),
        count(contiguous(in.count)),
        key_start(contiguous(in.key_state).value_or(Tensor())),
        value_start(contiguous(in.value_state).value_or(Tensor())),
        packed((in.packed_query.to(options.dtype()) * in.scale)
                   .expand({tokens.count(), heads, slots, depth})
                   .contiguous()),
        inverse(at::empty({in.query.size(0), n}, options)) {
    maps.tiles = tokens.cut(kTiles);
    maps.heads = heads;
    maps.length = n;
    maps.slots = slots;
    maps.count = count ? count->const_data_ptr<int64_t>() : nullptr;
    maps.mask = mask ? mask->const_data_ptr<bool>() : nullptr;
    maps.scale = static_cast<T>(in.scale);
    maps.elu = in.activation == "elu";
    maps.pack_dropout =
        dropout_of(in.dropout_p, in.seed, ops::DropoutMap::kCausalPack, seed);
    maps.unpack_dropout =
        dropout_of(in.dropout_p, in.seed, ops::DropoutMap::kCausalUnpack, seed);
  }

  Tensor empty_map() const {
    return at::empty({in.query.size(0), heads, n, slots}, options);
  }
  Factor<T> inverse_rows() const { return {inverse.const_data_ptr<T>(), n, 0}; }
  Operand<T> operand(const Tensor& x) const { return {rows_of(x), {}}; }

  /// x [depth] against the memory: x . packed^T, or x [slots] . packed.
  void against_memory(const Operand<T>& x, bool transposed,
                      const Rows& out) const {
    Apply<T> a = {};
    a.tiles = tokens.cut(kTiles);
    a.pieces = tokens.cut(kPieces);
    a.heads = heads;
    a.transposed = transposed;
    a.depth = transposed ? depth : slots;
    a.width = transposed ? slots : depth;
    a.sums = packed.const_data_ptr<T>();
    a.sums_size = slots * depth;
    a.ld = depth;
    a.x = x;
    a.out = out;
    apply_sums(a, stream);
  }
  /// a, and its slope where wanted.
  Tensor pack(Tensor* slope) const {
    Tensor a = empty_map();
    against_memory(operand(in.pack_key), true, rows_of(a));
    if (slope != nullptr) *slope = empty_map();
    activate<T>(maps, a.data_ptr<T>(),
                slope != nullptr ? slope->data_ptr<T>() : nullptr, stream);
    return a;
  }
  CausalSum<T> first(const Tensor& a) const {
    return {tokens,          heads,      depth,   slots, operand(in.query),
            operand(in.key), operand(a), options, stream};
  }
  CausalSum<T> second(const Tensor& w, const Tensor& a) const {
    return {
        tokens,  heads, slots, width, operand(w), operand(a), operand(in.value),
        options, stream};
  }

  const NestedInputs& in;
  int64_t heads, n, slots, depth, width;
  Sequences tokens;
  at::TensorOptions options;
  cudaStream_t stream;
  OptionalTensor mask, count;
  Tensor key_start, value_start;
  Tensor packed;  ///< scale * packed_query, one for each sequence
  Tensor inverse, seed;
  NestedMaps<T> maps = {};
};

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
  const c10::cuda::CUDAGuard guard(query.device());
  const int64_t sequences =
      ops::nested_causal_sequences(query, cu_seqlens).expect_int();
  const auto wide = query.options().dtype(ops::compute_dtype(query));
  Tensor output = ops::empty_heads(query, query.size(2), value.size(3));
  Tensor new_key_state = at::empty(
      {sequences, query.size(1), query.size(3), packed_query.size(2)}, wide);
  Tensor new_value_state = at::empty(
      {sequences, query.size(1), packed_query.size(2), value.size(3)}, wide);
  Tensor new_count = at::empty({sequences}, query.options().dtype(at::kLong));
  const NestedInputs in = {query,       pack_key,     key,
                           value,       packed_query, packed_mask,
                           cu_seqlens,  activation,   scale_of(query, scale),
                           dropout_p,   seed,         key_state,
                           value_state, count};
  if (by_tensor_cores(in)) {
    NestedMaps<float> maps = {};
    const Sequences tokens(query, cu_seqlens, query.size(0), query.size(2),
                           {64});
    const OptionalTensor before = contiguous(count);
    maps.tiles = tokens.cut(0);
    maps.count = before ? before->const_data_ptr<int64_t>() : nullptr;
    positions<float>(maps, nullptr, new_count.data_ptr<int64_t>(),
                     c10::cuda::getCurrentCUDAStream());
    NestedOutputs out = {output, new_key_state, new_value_state};
    nested_by_tensor_cores(in, out);
    return {output, new_key_state, new_value_state, new_count};
  }
  warn_of_portable_kernels("nested_causal_attention", query);
  dispatch_compute(query, [&]<typename T>() {
    Nested<T> nested(in);
    positions<T>(nested.maps, nested.inverse.template data_ptr<T>(),
                 new_count.data_ptr<int64_t>(), nested.stream);
    const Tensor a = nested.pack(nullptr);
    const Tensor u = nested.empty_map();
    const CausalSum<T> first = nested.first(a);
    first.forward(first.states(nested.key_start, &new_key_state), {},
                  rows_of(u));
    slot_softmax<T>(nested.maps, u.const_data_ptr<T>(), u.data_ptr<T>(),
                    nested.stream);
    const CausalSum<T> second = nested.second(u, a);
    second.forward(second.states(nested.value_start, &new_value_state),
                   nested.inverse_rows(), rows_of(output));
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
  const c10::cuda::CUDAGuard guard(query.device());
  Tensor d_query = ops::empty_heads(query),
         d_pack_key = ops::empty_heads(pack_key), d_key = ops::empty_heads(key),
         d_value = ops::empty_heads(value),
         d_packed = ops::empty_heads(packed_query);
  const Tensor gradient = grad_output.has_value()
                              ? with_unit_stride(*grad_output)
                              : at::zeros({query.size(0), query.size(1),
                                           query.size(2), value.size(3)},
                                          query.options());
  Tensor d_key_state, d_value_state;
  const NestedInputs in = {query,       pack_key,     key,
                           value,       packed_query, packed_mask,
                           cu_seqlens,  activation,   scale_of(query, scale),
                           dropout_p,   seed,         key_state,
                           value_state, count};
  const auto given = [&](const OptionalTensor& x, const Tensor& gradient) {
    return x.has_value() ? gradient : at::empty({0}, query.options());
  };
  if (by_tensor_cores(in)) {
    NestedGradients out = {d_query, d_pack_key, d_key, d_value, {}, {}, {}};
    nested_backward_by_tensor_cores(in, gradient, grad_key_state,
                                    grad_value_state, out);
    return {d_query,
            d_pack_key,
            d_key,
            d_value,
            out.packed,
            given(key_state, out.key_state),
            given(value_state, out.value_state)};
  }
  dispatch_compute(query, [&]<typename T>() {
    Nested<T> p(in);
    positions<T>(p.maps, p.inverse.template data_ptr<T>(), nullptr, p.stream);
    Tensor slope;
    const Tensor a = p.pack(&slope);
    const Tensor u = p.empty_map(), w = p.empty_map();
    const CausalSum<T> first = p.first(a);
    const Tensor key_states = first.states(p.key_start, nullptr);
    first.forward(key_states, {}, rows_of(u));
    slot_softmax<T>(p.maps, u.const_data_ptr<T>(), w.data_ptr<T>(), p.stream);
    const CausalSum<T> second = p.second(w, a);
    const Operand<T> g = {rows_of(gradient), p.inverse_rows()};

    // Back through the second sum.
    const Tensor dw = p.empty_map();
    second.grad_query(second.states(p.value_start, nullptr), g, rows_of(dw));
    d_value_state =
        at::empty({p.tokens.count(), p.heads, p.slots, p.width}, p.options);
    const Tensor value_rests = second.rests(
        g, contiguous(grad_value_state).value_or(Tensor()), &d_value_state);
    second.grad_value(value_rests, g, rows_of(d_value));
    const Tensor da = p.empty_map();
    second.grad_key(value_rests, g, rows_of(da));

    // Through the softmax, then the first sum; u becomes its gradient.
    slot_softmax_backward<T>(p.maps, u.data_ptr<T>(), dw.const_data_ptr<T>(),
                             p.stream);
    const Operand<T> du = p.operand(u);
    first.grad_query(key_states, du, rows_of(d_query));
    d_key_state =
        at::empty({p.tokens.count(), p.heads, p.depth, p.slots}, p.options);
    const Tensor key_rests = first.rests(
        du, contiguous(grad_key_state).value_or(Tensor()), &d_key_state);
    first.grad_key(key_rests, du, rows_of(d_key));
    first.grad_value(key_rests, du, rows_of(dw));  // dw is free again

    add_and_multiply<T>(da.numel(), da.data_ptr<T>(), dw.const_data_ptr<T>(),
                        slope.const_data_ptr<T>(), p.stream);
    p.against_memory(p.operand(da), false, rows_of(d_pack_key));

    // The memory's own gradient: over all tokens.
    const Cut pieces = p.tokens.cut(kPieces);
    const Tensor parts =
        at::empty({pieces.bound, p.heads, p.slots, p.depth}, p.options);
    outer_sums<T>({pieces,
                   p.heads,
                   p.slots,
                   p.depth,
                   p.depth,
                   p.operand(da),
                   p.operand(pack_key),
                   {},
                   parts.data_ptr<T>()},
                  p.stream);
    const Tensor sums =
        at::empty({p.tokens.count(), p.heads, p.slots, p.depth}, p.options);
    AddParts<T> add = {};
    add.pieces = pieces;
    add.heads = p.heads;
    add.size = p.slots * p.depth;
    add.parts = parts.data_ptr<T>();
    add.total = sums.data_ptr<T>();
    add_parts(add, p.stream);
    d_packed =
        (packed_query.size(0) == 1 ? sums.sum(0, /*keepdim=*/true) : sums)
            .mul_(in.scale)
            .to(packed_query.scalar_type());
  });
  return {d_query,
          d_pack_key,
          d_key,
          d_value,
          d_packed,
          given(key_state, d_key_state),
          given(value_state, d_value_state)};
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
  const c10::cuda::CUDAGuard guard(query.device());
  Tensor output = at::empty(value.sizes(), value.options());
  const OptionalTensor mask = contiguous(packed_mask);
  Tensor seen = count.contiguous();
  dispatch_compute(query, [&]<typename T>() {
    NestedStep<T> a = {};
    a.batch = query.size(0);
    a.heads = query.size(1);
    a.slots = packed_query.size(2);
    a.depth = query.size(2);
    a.width = value.size(2);
    a.query = token_rows_of(query);
    a.pack_key = token_rows_of(pack_key);
    a.key = token_rows_of(key);
    a.value = token_rows_of(value);
    a.out = token_rows_of(output);
    a.packed_query = rows_of(packed_query);
    if (packed_query.size(0) == 1) a.packed_query.batch = 0;
    a.key_state = rows_of(key_state);
    a.value_state = rows_of(value_state);
    a.mask = mask ? mask->const_data_ptr<bool>() : nullptr;
    a.count = seen.mutable_data_ptr<int64_t>();
    a.scale = static_cast<T>(scale_of(query, scale));
    a.elu = activation == "elu";
    nested_step(a, c10::cuda::getCurrentCUDAStream());
  });
  if (!seen.is_same(count)) count.copy_(seen);
  return output;
}

TORCH_LIBRARY_IMPL(luna, CUDA, m) {
  m.impl("nested_causal_attention", nested_causal_attention);
  m.impl("nested_causal_attention_backward", nested_causal_attention_backward);
  m.impl("nested_causal_attention_step", nested_causal_attention_step);
}

}  // namespace
}  // namespace luna::cuda
