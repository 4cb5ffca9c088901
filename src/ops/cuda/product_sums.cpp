#include "ops/cuda/product_sums.h"

#include "ops/gpu_paths.h"

namespace luna::cuda {
namespace {

using at::Tensor;

// Columns behind the values: two for the normaliser, the rest so that rows
// stay aligned for the matrix products.
constexpr int64_t kExtra = 8;

Tensor flat(const Tensor& x) { return x.flatten(0, 1); }
Tensor rounded(const Tensor& x) { return x.to(at::kBFloat16); }
Tensor product(const Tensor& a, const Tensor& b) {
  return at::bmm(a, b, at::kFloat);
}
Tensor transposed(const Tensor& x) { return x.transpose(1, 2); }

/// key_weight as [B,H or 1,m,1].
Tensor weight_column(const Tensor& weight) {
  return (weight.dim() == 2 ? weight.unsqueeze(1) : weight).unsqueeze(-1);
}

Tensor weighted(const ops::LinearSums& sums, const Tensor& phi_key) {
  if (!sums.key_weight.has_value()) return phi_key;
  return phi_key * weight_column(*sums.key_weight).to(phi_key.scalar_type());
}

/// [x, column, column's rounding error, 0 ...] in bfloat16.
Tensor extended(const Tensor& x, const Tensor& column) {
  const Tensor high = rounded(column), low = rounded(column - high);
  const Tensor zeros =
      at::zeros({x.size(0), x.size(1), kExtra - 2}, high.options());
  return at::cat({rounded(x), high, low, zeros}, -1);
}

/// [S, z] [B,H,F,dv+1] -> [S, z's high part, z's low part, 0 ...].
Tensor extended_state(const Tensor& state) {
  const Tensor s = flat(state);
  const int64_t width = s.size(2) - 1;
  return extended(s.narrow(2, 0, width), s.narrow(2, width, 1));
}

/// [x, 1, 0 ...]: sums over it have z in the column behind the values.
Tensor with_one(const Tensor& value) {
  return extended(value, at::ones({value.size(0), value.size(1), 1},
                                  value.options().dtype(at::kFloat)));
}

/// The two normaliser columns of a product taken together: [.., dv+1].
Tensor joined(const Tensor& x, int64_t width) {
  return at::cat({x.narrow(-1, 0, width),
                  x.narrow(-1, width, 1) + x.narrow(-1, width + 1, 1)},
                 -1);
}

struct Applied {
  Tensor numerator, denominator;  ///< [BH,n,dv], [BH,n,1]
};

Applied apply(const Tensor& phi_query, const Tensor& state) {
  const int64_t width = state.size(3) - 1;
  const Tensor rows = product(flat(phi_query), extended_state(state));
  return {rows.narrow(2, 0, width),
          rows.narrow(2, width, 1) + rows.narrow(2, width + 1, 1)};
}

Tensor guarded(const Tensor& denominator, double eps) {
  return at::where(denominator.lt(0), denominator.clamp_max(-eps),
                   denominator.clamp_min(eps));
}

}  // namespace

bool products_serve(const ops::LinearSums& sums, int64_t features,
                    at::ScalarType dtype) {
  return !sums.causal && !sums.packed() &&
         sums.query.scalar_type() == at::kBFloat16 && dtype == at::kBFloat16 &&
         features >= ops::kProductFeatures && sums.query.numel() > 0 &&
         sums.key.numel() > 0 && sums.value.numel() > 0;
}

ops::LinearSumsResult forward_products(const ops::LinearSums& sums,
                                       const Tensor& phi_query,
                                       const Tensor& phi_key, bool save) {
  auto result = ops::empty_result(sums, phi_query.size(3), save);
  const int64_t width = sums.value.size(3);
  const Tensor state = product(transposed(flat(weighted(sums, phi_key))),
                               with_one(flat(sums.value)))
                           .narrow(2, 0, width + 1)
                           .view_as(result.state);
  if (sums.state.has_value()) {
    at::add_out(result.state, state, *sums.state);
  } else {
    result.state.copy_(state);
  }
  const auto [numerator, denominator] = apply(phi_query, result.state);
  if (!sums.normalize) {
    result.output.copy_(numerator.view_as(result.output));
    return result;
  }
  result.output.copy_(
      (numerator / guarded(denominator, sums.eps)).view_as(result.output));
  if (save) result.denominator.copy_(denominator.view_as(result.denominator));
  return result;
}

Tensor output_by_products(const ops::LinearSums& sums,
                          const Tensor& final_state, const Tensor& phi_query) {
  const auto [numerator, denominator] = apply(phi_query, final_state);
  return (numerator / guarded(denominator, sums.eps))
      .unflatten(0, {sums.query.size(0), sums.query.size(1)});
}

ProductGradients backward_products(const ops::LinearSums& sums,
                                   const Tensor& final_state,
                                   const Tensor& grad_output,
                                   const Tensor& grad_state,
                                   const Tensor& phi_query,
                                   const Tensor& phi_key, const Tensor& inverse,
                                   const Tensor& d) {
  const int64_t width = sums.value.size(3);
  const auto split = [&](const Tensor& x) {
    return x.unflatten(0, {sums.query.size(0), sums.query.size(1)});
  };
  const Tensor rows = extended(flat(grad_output) * flat(inverse).unsqueeze(-1),
                               flat(d).unsqueeze(-1));
  // Both columns of d meet z itself.
  const Tensor s = flat(final_state), z = s.narrow(2, width, 1);
  const Tensor zeros =
      at::zeros({s.size(0), s.size(1), kExtra - 2}, s.options());
  const Tensor state =
      rounded(at::cat({s.narrow(2, 0, width), z, z, zeros}, -1));
  ProductGradients grads;
  grads.query = split(product(rows, transposed(state)));
  Tensor sum = split(joined(product(transposed(flat(phi_query)), rows), width));
  if (grad_state.defined()) sum = sum + grad_state;
  grads.state = sum;
  const Tensor total = extended_state(sum);
  // [v, 1, 1] against [dS, dz's high and low part].
  const Tensor ones =
      at::ones({total.size(0), sums.value.size(2), 2}, total.options());
  const Tensor none = at::zeros({total.size(0), sums.value.size(2), kExtra - 2},
                                total.options());
  const Tensor value = at::cat({flat(sums.value), ones, none}, -1);
  grads.weighted_key = split(product(value, transposed(total)));
  grads.value = split(product(flat(weighted(sums, phi_key)),
                              total.narrow(2, 0, width).contiguous()));
  return grads;
}

}  // namespace luna::cuda
