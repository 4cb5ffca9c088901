#include "ops/pack_attention.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include <tuple>

#include "ops/checks.h"
#include "ops/cpu/pack_backward.h"
#include "ops/cpu/pack_forward.h"
#include "ops/heads.h"

namespace luna::cpu {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

void check_values(const Tensor& key, const OptionalTensor& key_weight,
                  const OptionalTensor& cu_seqlens) {
  if (key_weight.has_value()) {
    ops::check_weight_values("pack_attention", *key_weight);
  }
  if (cu_seqlens.has_value()) {
    ops::check_cu_seqlens_values("pack_attention", "cu_seqlens_k", *cu_seqlens,
                                 key.size(2));
  }
}

std::tuple<Tensor, Tensor, Tensor> pack_attention_forward(
    const Tensor& query, const Tensor& key, const Tensor& value,
    const OptionalTensor& key_weight, const OptionalTensor& cu_seqlens_k,
    std::optional<double> scale, double dropout_p, const OptionalTensor& seed) {
  ops::check_pack_attention(query, key, value, key_weight, cu_seqlens_k,
                            dropout_p, seed);
  check_values(key, key_weight, cu_seqlens_k);
  const int64_t sequences =
      ops::pack_attention_sequences(key, cu_seqlens_k).expect_int();
  Tensor output =
      at::empty({sequences, query.size(1), query.size(2), value.size(3)},
                query.options());
  Tensor unrounded =
      at::empty(ops::is_rounded(query) ? output.sizes() : at::IntArrayRef{0},
                query.options().dtype(ops::compute_dtype(query)));
  Tensor stats = at::empty({2, sequences, query.size(1), query.size(2)},
                           query.options().dtype(ops::compute_dtype(query)));
  const double s = scale_of(query, scale);
  dispatch_compute(query, [&]<typename T>() {
    PackForward<T>(query, key, value, key_weight, cu_seqlens_k, s, dropout_p,
                   seed, output, unrounded, stats)
        .run();
  });
  return {output, unrounded, stats};
}

Tensor pack_attention(const Tensor& query, const Tensor& key,
                      const Tensor& value, const OptionalTensor& key_weight,
                      const OptionalTensor& cu_seqlens_k,
                      std::optional<double> scale, double dropout_p,
                      const OptionalTensor& seed) {
  return std::get<0>(pack_attention_forward(
      query, key, value, key_weight, cu_seqlens_k, scale, dropout_p, seed));
}

std::tuple<Tensor, Tensor, Tensor, Tensor> pack_attention_backward(
    const Tensor& grad_output, const Tensor& query, const Tensor& key,
    const Tensor& value, const Tensor& output, const Tensor& stats,
    const OptionalTensor& key_weight, const OptionalTensor& cu_seqlens_k,
    std::optional<double> scale, double dropout_p, const OptionalTensor& seed,
    bool weight_gradient) {
  ops::check_pack_attention_backward(grad_output, query, key, value, output,
                                     stats, key_weight, cu_seqlens_k, dropout_p,
                                     seed);
  check_values(key, key_weight, cu_seqlens_k);
  Tensor grad_query = ops::empty_heads(query);
  Tensor grad_key = ops::empty_heads(key);
  Tensor grad_value = ops::empty_heads(value);
  Tensor grad_weight;
  weight_gradient &= key_weight.has_value();
  if (weight_gradient) {
    grad_weight =
        at::empty({key.size(0), key.size(1), key.size(2)}, stats.options());
  }
  const double s = scale_of(query, scale);
  dispatch_compute(query, [&]<typename T>() {
    PackBackward<T>(with_unit_stride(grad_output), query, key, value, output,
                    stats.contiguous(), key_weight, cu_seqlens_k, s, dropout_p,
                    seed, grad_query, grad_key, grad_value, grad_weight)
        .run();
  });
  return {grad_query, grad_key, grad_value,
          weight_gradient ? like_weight(grad_weight, *key_weight)
                          : at::empty({0}, query.options())};
}

TORCH_LIBRARY_IMPL(luna, CPU, m) {
  m.impl("pack_attention", pack_attention);
  m.impl("_pack_attention_forward", pack_attention_forward);
  m.impl("pack_attention_backward", pack_attention_backward);
}

}  // namespace
}  // namespace luna::cpu
