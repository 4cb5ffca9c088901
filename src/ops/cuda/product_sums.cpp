#include "ops/cuda/product_sums.h"

#include "ops/gpu_paths.h"

namespace luna::cuda {
namespace {

using at::Tensor;

// Columns behind the values: two for the normaliser, the rest so that rows
// stay aligned for the matrix products.
constexpr int64_t kExtra = 8;

Tensor flat(const Tensor& x) { return x.flatten(0, 1); }
/// [B,H,n] -> [BH,n,1].
Tensor column(const Tensor& x) { return flat(x).unsqueeze(-1); }
Tensor rounded(const Tensor& x) { return x.to(at::kBFloat16); }
Tensor product(const Tensor& a, const Tensor& b) {
  return at::bmm(a, b, at::kFloat);
}
Tensor transposed(const Tensor& x) { return x.transpose(1, 2); }

/// A sum of which `part` may be the first term.
void add(Tensor& sum, const Tensor& part) {
  if (sum.defined()) {
    sum.add_(part);
  } else {
    sum = part;
  }
}

/// key_weight as [B,H or 1,m,1].
Tensor weight_column(const Tensor& weight) {
  return (weight.dim() == 2 ? weight.unsqueeze(1) : weight).unsqueeze(-1);
}

/// Rounded once, whatever the weights' dtype.
Tensor weighted(const ops::LinearSums& sums, const Tensor& phi_key) {
  if (!sums.key_weight.has_value()) return phi_key;
  Tensor result = at::empty_like(phi_key);
  return at::mul_out(result, phi_key, weight_column(*sums.key_weight));
}

/// [x, first, second, 0 ...] in bfloat16.
Tensor beside(const Tensor& x, const Tensor& first, const Tensor& second) {
  const Tensor zeros = at::zeros({x.size(0), x.size(1), kExtra - 2},
                                 x.options().dtype(at::kBFloat16));
  return at::cat({rounded(x), rounded(first), rounded(second), zeros}, -1);
}

/// [x, column's high part, its low part, 0 ...].
Tensor extended(const Tensor& x, const Tensor& column) {
  return beside(x, column, column - rounded(column));
}

/// S and z of [S, z] [B,H,F,dv+1], without batch.
struct State {
  explicit State(const Tensor& state)
      : sums(flat(state).narrow(2, 0, state.size(3) - 1)),
        normaliser(flat(state).narrow(2, state.size(3) - 1, 1)) {}

  /// [S, z's high part, z's low part, 0 ...].
  Tensor in_parts() const { return extended(sums, normaliser); }
  /// [S, z, z, 0 ...]: for rows whose last column is in two parts.
  Tensor twice() const { return beside(sums, normaliser, normaliser); }

  Tensor sums, normaliser;
};

/// The two normaliser columns of a product taken together: [.., 1].
Tensor joint_column(const Tensor& x, int64_t width) {
  return x.narrow(-1, width, 1) + x.narrow(-1, width + 1, 1);
}

Tensor guarded(const Tensor& denominator, double eps) {
  return at::where(denominator.lt(0), denominator.clamp_max(-eps),
                   denominator.clamp_min(eps));
}

Tensor values_and_ones(const Tensor& value) {
  const Tensor ones =
      at::ones({value.size(0), value.size(1), 1}, value.options());
  return beside(value, ones, ones);
}

}  // namespace

bool products_serve(const ops::LinearSums& sums, int64_t features,
                    at::ScalarType dtype) {
  const bool by_map = sums.normalize && sums.query.size(2) <= ops::kMapTokens;
  return (!sums.causal || by_map) && !sums.packed() &&
         sums.query.scalar_type() == at::kBFloat16 && dtype == at::kBFloat16 &&
         features >= ops::kProductFeatures && sums.query.numel() > 0 &&
         sums.key.numel() > 0 && sums.value.numel() > 0;
}

Products::Products(const ops::LinearSums& sums, const Tensor& phi_query,
                   const Tensor& phi_key)
    : sums_(sums),
      width_(sums.value.size(3)),
      query_(flat(phi_query)),
      key_(flat(weighted(sums, phi_key))),
      value_(values_and_ones(flat(sums.value))) {
  if (sums.causal) map_ = at::bmm(query_, transposed(key_)).tril_();
}

Tensor Products::read_state(const Tensor& final_state) const {
  return sums_.causal ? sums_.state.value_or(Tensor()) : final_state;
}

Tensor Products::split(const Tensor& x) const {
  return x.unflatten(0, {sums_.query.size(0), sums_.query.size(1)});
}

Products::Applied Products::apply(const Tensor& final_state) const {
  Applied result;
  if (map_.defined()) {
    const Tensor rows = product(map_, value_);
    result = {rows.narrow(2, 0, width_), rows.narrow(2, width_, 1)};
  }
  if (const Tensor state = read_state(final_state); state.defined()) {
    const Tensor rows = product(query_, State(state).in_parts());
    add(result.numerator, rows.narrow(2, 0, width_));
    add(result.denominator, joint_column(rows, width_));
  }
  return result;
}

ops::LinearSumsResult Products::forward(bool save) const {
  auto result = ops::empty_result(sums_, query_.size(2), save);
  const Tensor state =
      split(product(transposed(key_), value_)).narrow(3, 0, width_ + 1);
  if (sums_.state.has_value()) {
    at::add_out(result.state, state, *sums_.state);
  } else {
    result.state.copy_(state);
  }
  const auto [numerator, denominator] = apply(result.state);
  if (!sums_.normalize) {
    result.output.copy_(split(numerator));
    return result;
  }
  result.output.copy_(split(numerator / guarded(denominator, sums_.eps)));
  if (save) result.denominator.copy_(denominator.view_as(result.denominator));
  return result;
}

Tensor Products::output(const Tensor& final_state) const {
  const auto [numerator, denominator] = apply(final_state);
  return split(numerator / guarded(denominator, sums_.eps));
}

ProductGradients Products::backward(const Tensor& final_state,
                                    const Tensor& grad_output,
                                    const Tensor& grad_state,
                                    const Tensor& inverse,
                                    const Tensor& d) const {
  const Tensor up = rounded(flat(grad_output));
  const Tensor scaled = up * column(inverse);
  Tensor query, weighted_key, value, state;
  if (map_.defined()) {
    // Numbers that nearly cancel: the products of what is given are exact, and
    // rounding comes after d.
    const Tensor products =
        product(up, transposed(value_.narrow(2, 0, width_)));
    Tensor grad_map = at::empty_like(map_);
    at::addcmul_out(grad_map, column(d), products, column(inverse)).tril_();
    query = product(grad_map, key_);
    weighted_key = product(transposed(grad_map), query_);
    value = product(transposed(map_), rounded(scaled));
  }
  if (const Tensor read = read_state(final_state); read.defined()) {
    const Tensor rows = extended(scaled, column(d));
    add(query, product(rows, transposed(State(read).twice())));
    const Tensor sums = product(transposed(query_), rows);
    state = split(
        at::cat({sums.narrow(2, 0, width_), joint_column(sums, width_)}, -1));
    if (grad_state.defined()) state.add_(grad_state);
  }
  // What the keys' sums get: by all queries, or from behind the last token.
  if (const Tensor keys = sums_.causal ? grad_state : state; keys.defined()) {
    const Tensor total = State(keys).in_parts();
    add(weighted_key, product(value_, transposed(total)));
    add(value, product(key_, total.narrow(2, 0, width_).contiguous()));
  }
  return {split(query), split(weighted_key), split(value), state};
}

}  // namespace luna::cuda
