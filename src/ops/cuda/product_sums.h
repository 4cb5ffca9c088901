#pragma once

#include "ops/cuda/sums.h"

// Linear attention of bfloat16 features by batched matrix products (cuBLAS),
// for sequences of one length. Products are summed in float32.
//
// Not causal, queries read S: it is rounded to bfloat16 where a product reads
// it, its normaliser is read as two numbers that add up to it. Causal, up to
// kMapTokens tokens, they read the whole map
//
//   A = tril(phi(q) (w phi(k))^T),  out = A v / guard(A 1)
//
// and, where there is one, the state before the first token. A is rounded to
// bfloat16, numerators and denominators alike are sums of the rounded numbers:
// without denominators that would be a rounding too many.

namespace luna::cuda {

/// For features of this number and dtype.
bool products_serve(const ops::LinearSums& sums, int64_t features,
                    at::ScalarType dtype);

/// Gradients with respect to the weighted features and the values, and the
/// state's [B,H,F,dv+1]; that is undefined where a causal call has no state.
struct ProductGradients {
  at::Tensor query, weighted_key, value, state;
};

/// One call's products: what both directions read is made once.
class Products {
 public:
  Products(const ops::LinearSums& sums, const at::Tensor& phi_query,
           const at::Tensor& phi_key);

  /// As forward_sums, which calls it.
  ops::LinearSumsResult forward(bool save) const;

  /// The output again, not rounded: [B,H,n,dv] float32.
  at::Tensor output(const at::Tensor& final_state) const;

  /// `inverse`, `d` [B,H,n]: of each row 1 / denominator and the denominator's
  /// gradient; `grad_state` undefined for none.
  ProductGradients backward(const at::Tensor& final_state,
                            const at::Tensor& grad_output,
                            const at::Tensor& grad_state,
                            const at::Tensor& inverse,
                            const at::Tensor& d) const;

 private:
  struct Applied {
    at::Tensor numerator, denominator;  ///< [BH,n,dv], [BH,n,1]
  };
  Applied apply(const at::Tensor& final_state) const;

  /// The state that queries read, undefined for none.
  at::Tensor read_state(const at::Tensor& final_state) const;

  /// [BH,...] -> [B,H,...].
  at::Tensor split(const at::Tensor& x) const;

  const ops::LinearSums& sums_;
  int64_t width_;     ///< dv
  at::Tensor query_;  ///< phi(q) [BH,n,F]
  at::Tensor key_;    ///< w phi(k) [BH,m,F]
  at::Tensor value_;  ///< [v, 1, 1, 0 ...] [BH,m,dv+8]
  at::Tensor map_;    ///< A [BH,n,n]: causal alone
};

}  // namespace luna::cuda
