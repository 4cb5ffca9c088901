#include "ops/cuda/sums.h"

#include <algorithm>

#include "ops/cuda/linear_sums.h"
#include "ops/cuda/product_sums.h"

namespace luna::cuda {
namespace {

using at::Tensor;

constexpr int64_t kTokens = 64;  // of a tile

/// Tokens of a piece. Causal: what lies inside a piece costs its length a
/// token, so short ones, yet such that their states are no larger than q.
/// Otherwise: pieces enough to fill any GPU. Depends on shapes alone.
int64_t piece_length(const ops::LinearSums& sums, int64_t features,
                     int64_t length) {
  if (sums.causal) {
    const int64_t segment =
        ops::segment_length(features, sums.value.size(3)).expect_int();
    return segment == 1024 ? 256 : segment;
  }
  const int64_t tokens = sums.key.size(0) * sums.key.size(1) * length;
  const int64_t wanted = (tokens / 2048 + kTokens - 1) / kTokens * kTokens;
  return std::clamp<int64_t>(wanted, 256, 4096);
}

enum { kTiles, kPieces, kSegments };

template <typename T>
struct Problem {
  Problem(const ops::LinearSums& sums, int64_t features)
      : heads(sums.query.size(1)),
        features(features),
        width(sums.value.size(3)),
        ld(width + 1),
        segment(ops::segment_length(features, width).expect_int()),
        dtype(ops::compute_dtype(sums.query)),
        split(sums.query.scalar_type() != dtype),
        options(sums.query.options().dtype(dtype)),
        queries(sums.query, sums.cu_seqlens_q, sums.query.size(0),
                sums.query.size(2),
                {kTokens, piece_length(sums, features, sums.query.size(2)),
                 segment}),
        keys(sums.causal
                 ? queries
                 : Sequences(sums.query, sums.cu_seqlens_k, sums.query.size(0),
                             sums.key.size(2),
                             {kTokens,
                              piece_length(sums, features, sums.key.size(2))})),
        weight(weight_of<T>(sums.key_weight, dtype, weight_holder)),
        stream(c10::cuda::getCurrentCUDAStream()) {
    if (sums.state.has_value()) start = sums.state->contiguous();
  }

  Tensor empty_parts(const Cut& pieces) const {
    return at::empty({pieces.bound, heads, features, ld}, options);
  }
  const T* start_data() const {
    return start.defined() ? start.const_data_ptr<T>() : nullptr;
  }

  /// sum_t a_t [b_t, last_t]^T of each piece.
  Tensor parts_of(const Sequences& side, const Operand<T>& a,
                  const Operand<T>& b, const Factor<T>& last) const {
    const Cut pieces = side.cut(kPieces);
    Tensor parts = empty_parts(pieces);
    outer_sums<T>({pieces, heads, features, width, ld, a, b, last,
                   parts.data_ptr<T>(), split},
                  stream);
    return parts;
  }

  Apply<T> apply(const Sequences& rows, const ops::LinearSums& sums,
                 const Tensor& state) const {
    Apply<T> a = {};
    a.tiles = rows.cut(kTiles);
    a.pieces = rows.cut(kPieces);
    a.heads = heads;
    a.causal = sums.causal;
    a.sums = state.const_data_ptr<T>();
    a.sums_size = features * ld;
    a.ld = ld;
    a.with_last = true;
    a.eps = static_cast<T>(sums.eps);
    a.split = split;
    return a;
  }

  int64_t heads, features, width, ld, segment;
  at::ScalarType dtype;
  bool split;  // numbers that have no more digits than that
  at::TensorOptions options;
  Sequences queries, keys;
  Tensor weight_holder;
  Factor<T> weight;
  Tensor start;
  cudaStream_t stream;
};

template <typename T>
ops::LinearSumsResult forward_as(const ops::LinearSums& sums,
                                 const Tensor& phi_query, const Tensor& phi_key,
                                 bool save) {
  if (products_serve(sums, phi_query.size(3), phi_query.scalar_type())) {
    return forward_products(sums, phi_query, phi_key, save);
  }
  const Problem<T> p(sums, phi_query.size(3));
  auto result = ops::empty_result(sums, p.features, save);
  if (sums.packed()) result.segment_states.zero_();  // rows left over
  const Operand<T> query = {rows_of(phi_query), {}};
  const Operand<T> key = {rows_of(phi_key), p.weight};
  const Operand<T> value = {rows_of(sums.value), {}};
  Tensor parts = p.parts_of(p.keys, key, value, {});
  AddParts<T> add = {};
  add.pieces = p.keys.cut(kPieces);
  add.heads = p.heads;
  add.size = p.features * p.ld;
  add.parts = parts.template data_ptr<T>();
  add.start = p.start_data();
  add.total = result.state.template data_ptr<T>();
  add.scan = sums.causal;
  if (save && sums.causal) {
    add.saved = result.segment_states.template data_ptr<T>();
    add.save = p.queries.cut(kSegments);
    add.save_every = p.segment / add.pieces.size;
  }
  add_parts(add, p.stream);
  Apply<T> a = p.apply(p.queries, sums, sums.causal ? parts : result.state);
  a.depth = p.features;
  a.width = p.width;
  a.x = query;
  a.y = key;
  a.z = value;
  a.normalize = sums.normalize;
  if (save && sums.normalize) {
    a.denominator = result.denominator.template data_ptr<T>();
    a.denominator_batch = result.denominator.stride(0);
    a.denominator_head = result.denominator.stride(1);
  }
  a.out = rows_of(result.output);
  apply_sums(a, p.stream);
  return result;
}

template <typename T>
SumsGradients backward_as(const ops::LinearSums& sums,
                          const ops::LinearSumsResult& saved,
                          const Tensor& grad_output, const Tensor& grad_state,
                          const Tensor& phi_query, const Tensor& phi_key,
                          Tensor& grad_phi_query, Tensor& grad_phi_key) {
  const Problem<T> p(sums, phi_query.size(3));
  const bool products =
      products_serve(sums, phi_query.size(3), phi_query.scalar_type());
  const int64_t batch = sums.query.size(0), n = sums.query.size(2),
                m = sums.key.size(2);
  SumsGradients grads;
  grads.value = ops::empty_heads(sums.value);
  const bool weighted = sums.key_weight.has_value() &&
                        sums.key_weight->scalar_type() != at::kBool;

  const Operand<T> query = {rows_of(phi_query), {}};
  const Operand<T> key = {rows_of(phi_key), p.weight};
  const Operand<T> value = {rows_of(sums.value), {}};

  // States over the keys, before each piece.
  Tensor before = saved.state.contiguous();
  if (sums.causal) {
    before = p.parts_of(p.keys, key, value, {});
    AddParts<T> add = {};
    add.pieces = p.keys.cut(kPieces);
    add.heads = p.heads;
    add.size = p.features * p.ld;
    add.parts = before.template data_ptr<T>();
    add.start = p.start_data();
    add.scan = true;
    add_parts(add, p.stream);
  }
  // A rounded output is made again: it goes into a difference that nearly
  // cancels.
  Tensor output = saved.output;
  if (sums.normalize && products) {
    output = output_by_products(sums, saved.state, phi_query);
  } else if (sums.normalize && output.scalar_type() != p.dtype) {
    output = at::empty(output.sizes(), p.options);
    Apply<T> again = p.apply(p.queries, sums, before);
    again.depth = p.features;
    again.width = p.width;
    again.x = query;
    again.y = key;
    again.z = value;
    again.normalize = true;
    again.out = rows_of(output);
    apply_sums(again, p.stream);
  }

  // Of each query's row: 1 / denominator and the denominator's gradient.
  const Tensor inverse = at::empty({batch, p.heads, n}, p.options);
  const Tensor d = at::empty({batch, p.heads, n}, p.options);
  Tensor live;
  if (sums.key_weight.has_value() && !sums.state.has_value()) {
    live = at::empty({p.keys.count(), p.heads}, p.options.dtype(at::kLong));
    first_live_keys<T>(p.keys.cut(kTiles), p.heads, p.weight,
                       live.data_ptr<int64_t>(), p.stream);
  }
  row_gradients<T>(
      {p.queries.cut(kTiles), p.heads, p.width, sums.causal, sums.normalize,
       static_cast<T>(sums.eps), rows_of(grad_output), rows_of(output),
       saved.denominator.const_data_ptr<T>(),
       live.defined() ? live.const_data_ptr<int64_t>() : nullptr,
       p.keys.cut(kTiles), inverse.data_ptr<T>(), d.data_ptr<T>(),
       inverse.stride(0), inverse.stride(1)},
      p.stream);

  // From the gradient of the weighted features to that of the features and of
  // the weights.
  const auto finish_weighted = [&](const Tensor& of_weighted) {
    const Tensor grad_weight = at::empty({batch, p.heads, m}, p.options);
    finish_keys<T>(
        {batch, p.heads, m, p.features, rows_of(phi_key), rows_of(of_weighted),
         rows_of(grad_phi_key), p.weight, grad_weight.data_ptr<T>()},
        p.stream);
    if (weighted) grads.key_weight = like_weight(grad_weight, *sums.key_weight);
  };
  if (products) {
    const auto made =
        backward_products(sums, saved.state, grad_output, grad_state, phi_query,
                          phi_key, inverse, d);
    const auto put = [](Tensor& to, const Tensor& from) {
      if (to.scalar_type() == from.scalar_type()) {
        to = from;
      } else {
        to.copy_(from);
      }
    };
    put(grad_phi_query, made.query);
    grads.value.copy_(made.value);
    if (sums.state.has_value()) grads.state = made.state;
    if (sums.key_weight.has_value()) {
      finish_weighted(made.weighted_key);
    } else {
      put(grad_phi_key, made.weighted_key);
    }
    return grads;
  }

  const Operand<T> gradient = {rows_of(grad_output),
                               factor_of_rows<T>(inverse)};
  const Factor<T> d_rows = factor_of_rows<T>(d);

  // States over the queries, after each piece.
  Tensor after = p.parts_of(p.queries, query, gradient, d_rows);
  grads.state =
      at::empty({p.queries.count(), p.heads, p.features, p.ld}, p.options);
  {
    AddParts<T> add = {};
    add.pieces = p.queries.cut(kPieces);
    add.heads = p.heads;
    add.size = p.features * p.ld;
    add.parts = after.template data_ptr<T>();
    add.start = grad_state.defined() ? grad_state.const_data_ptr<T>() : nullptr;
    add.total = grads.state.template data_ptr<T>();
    add.scan = sums.causal;
    add.backwards = sums.causal;
    add_parts(add, p.stream);
  }
  const Tensor& rest = sums.causal ? after : grads.state;

  Apply<T> a = p.apply(p.queries, sums, before);
  a.transposed = true;
  a.depth = p.width;
  a.width = p.features;
  a.x = gradient;
  a.y = value;
  a.z = key;
  a.d = d_rows;
  a.out = rows_of(grad_phi_query);
  apply_sums(a, p.stream);

  a = p.apply(p.keys, sums, rest);
  a.backwards = true;
  a.transposed = true;
  a.depth = p.width;
  a.width = p.features;
  a.x = value;
  a.y = gradient;
  a.z = query;
  a.d = d_rows;
  Tensor unweighted;
  if (weighted) {
    unweighted = at::empty(phi_key.sizes(), p.options);
    a.out = rows_of(unweighted);
  } else {
    a.out = rows_of(grad_phi_key);
    a.out_factor = p.weight;
  }
  apply_sums(a, p.stream);
  if (weighted) finish_weighted(unweighted);

  a = p.apply(p.keys, sums, rest);
  a.backwards = true;
  a.depth = p.features;
  a.width = p.width;
  a.x = key;
  a.y = query;
  a.z = gradient;
  a.out = rows_of(grads.value);
  apply_sums(a, p.stream);
  if (!sums.state.has_value()) grads.state = Tensor();
  return grads;
}

}  // namespace

ops::LinearSumsResult forward_sums(const ops::LinearSums& sums,
                                   const Tensor& phi_query,
                                   const Tensor& phi_key, bool save) {
  return dispatch_compute(sums.query, [&]<typename T>() {
    return forward_as<T>(sums, phi_query, phi_key, save);
  });
}

SumsGradients backward_sums(const ops::LinearSums& sums,
                            const ops::LinearSumsResult& saved,
                            const Tensor& grad_output,
                            const std::optional<Tensor>& grad_state,
                            const Tensor& phi_query, const Tensor& phi_key,
                            Tensor& grad_phi_query, Tensor& grad_phi_key) {
  const Tensor upstream = with_unit_stride(grad_output);
  const Tensor upstream_state =
      grad_state.has_value() ? grad_state->contiguous() : Tensor();
  return dispatch_compute(sums.query, [&]<typename T>() {
    return backward_as<T>(sums, saved, upstream, upstream_state, phi_query,
                          phi_key, grad_phi_query, grad_phi_key);
  });
}

}  // namespace luna::cuda
