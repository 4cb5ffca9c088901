#pragma once

#include "ops/cuda/sums.h"

// Linear attention of bfloat16 features by batched matrix products (cuBLAS),
// for sequences of one length that are not causal. S and its normaliser are
// summed in float32; S is rounded to bfloat16 where a product reads it, the
// normaliser is read as two numbers that add up to it.

namespace luna::cuda {

/// For features of this number and dtype.
bool products_serve(const ops::LinearSums& sums, int64_t features,
                    at::ScalarType dtype);

/// As forward_sums and backward_sums, which call them.
ops::LinearSumsResult forward_products(const ops::LinearSums& sums,
                                       const at::Tensor& phi_query,
                                       const at::Tensor& phi_key, bool save);

/// `inverse`, `d` [B,H,n]: of each row 1 / denominator and the denominator's
/// gradient. Gives the gradients with respect to the weighted features and
/// the values, and the state's [B,H,F,dv+1].
struct ProductGradients {
  at::Tensor query, weighted_key, value, state;
};
ProductGradients backward_products(
    const ops::LinearSums& sums, const at::Tensor& final_state,
    const at::Tensor& grad_output, const at::Tensor& grad_state,
    const at::Tensor& phi_query, const at::Tensor& phi_key,
    const at::Tensor& inverse, const at::Tensor& d);

/// The output again, not rounded: [B,H,n,dv] float32.
at::Tensor output_by_products(const ops::LinearSums& sums,
                              const at::Tensor& final_state,
                              const at::Tensor& phi_query);

}  // namespace luna::cuda
