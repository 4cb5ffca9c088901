#include "ops/unpack_attention.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include <tuple>

#include "ops/checks.h"
#include "ops/cpu/unpack_backward.h"
#include "ops/cpu/unpack_forward.h"
#include "ops/heads.h"

namespace luna::cpu {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

void check_values(const Tensor& query, const OptionalTensor& key_weight,
                  const OptionalTensor& cu_seqlens) {
  if (key_weight.has_value()) {
    ops::check_weight_values("unpack_attention", *key_weight);
  }
  if (cu_seqlens.has_value()) {
    ops::check_cu_seqlens_values("unpack_attention", "cu_seqlens_q",
                                 *cu_seqlens, query.size(2));
  }
}

Tensor unpack_attention(const Tensor& query, const Tensor& key,
                        const Tensor& value, const OptionalTensor& key_weight,
                        const OptionalTensor& cu_seqlens_q,
                        std::optional<double> scale, double dropout_p,
                        const OptionalTensor& seed) {
  ops::check_unpack_attention(query, key, value, key_weight, cu_seqlens_q,
                              dropout_p, seed);
  check_values(query, key_weight, cu_seqlens_q);
  Tensor output = ops::empty_heads(query, query.size(2), value.size(3));
  const double s = scale_of(query, scale);
  dispatch_compute(query, [&]<typename T>() {
    UnpackForward<T>(query, key, value, key_weight, cu_seqlens_q, s, dropout_p,
                     seed, output)
        .run();
  });
  return output;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> unpack_attention_backward(
    const Tensor& grad_output, const Tensor& query, const Tensor& key,
    const Tensor& value, const OptionalTensor& output,
    const OptionalTensor& logsumexp, const OptionalTensor& key_weight,
    const OptionalTensor& cu_seqlens_q, std::optional<double> scale,
    double dropout_p, const OptionalTensor& seed, bool weight_gradient) {
  ops::check_unpack_attention_backward(grad_output, query, key, value, output,
                                       logsumexp, key_weight, cu_seqlens_q,
                                       dropout_p, seed);
  check_values(query, key_weight, cu_seqlens_q);
  Tensor grad_query = ops::empty_heads(query);
  Tensor grad_key = ops::empty_heads(key);
  Tensor grad_value = ops::empty_heads(value);
  weight_gradient &= key_weight.has_value();
  Tensor grad_weight;
  if (weight_gradient) {
    grad_weight = at::empty({key.size(0), key.size(1), key.size(2)},
                            query.options().dtype(ops::compute_dtype(query)));
  }
  const double s = scale_of(query, scale);
  dispatch_compute(query, [&]<typename T>() {
    UnpackBackward<T>(with_unit_stride(grad_output), query, key, value,
                      key_weight, cu_seqlens_q, s, dropout_p, seed, grad_query,
                      grad_key, grad_value, grad_weight)
        .run();
  });
  return {grad_query, grad_key, grad_value,
          weight_gradient ? like_weight(grad_weight, *key_weight)
                          : at::empty({0}, query.options())};
}

TORCH_LIBRARY_IMPL(luna, CPU, m) {
  m.impl("unpack_attention", unpack_attention);
  m.impl("unpack_attention_backward", unpack_attention_backward);
}

}  // namespace
}  // namespace luna::cpu
