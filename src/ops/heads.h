#pragma once

#include <ATen/core/Tensor.h>

#include <array>

// How an op lays out tensors [B,H,n,d] that it makes.

namespace luna::ops {

/// [B,H,tokens,width], uninitialised, with heads and tokens in memory in the
/// order of x's [B,H,n,d]: what a model split into heads, it can merge again
/// without a copy.
at::Tensor empty_heads(const at::Tensor& x, const c10::SymInt& tokens,
                       const c10::SymInt& width);
inline at::Tensor empty_heads(const at::Tensor& x) {
  return empty_heads(x, x.sym_size(2), x.sym_size(3));
}

/// For the gradients of query, key and value. Where those lie beside each other
/// in one buffer [B,n,3,H,d], as one product for all three leaves them, so do
/// their gradients, and its backward needs no copy.
std::array<at::Tensor, 3> empty_like_heads(const at::Tensor& query,
                                           const at::Tensor& key,
                                           const at::Tensor& value);

}  // namespace luna::ops
