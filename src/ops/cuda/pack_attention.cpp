#include "ops/pack_attention.h"

#include <torch/library.h>

#include "ops/cuda/softmax_problem.h"
#include "ops/heads.h"

namespace luna::cuda {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

enum { kTiles, kPieces };

/// The problem and what it points into.
template <typename T>
struct Pack {
  Pack(const Tensor& query, const Tensor& key, const Tensor& value,
       const OptionalTensor& key_weight, const OptionalTensor& cu_seqlens,
       double scale, double dropout_p, const OptionalTensor& seed,
       int64_t piece = kSoftmaxPiece)
      : tokens(key, cu_seqlens, key.size(0), key.size(2), {64, piece}) {
    problem.pack = true;
    problem.tokens = tokens.cut(kPieces);
    problem.heads = query.size(1);
    problem.slots = query.size(2);
    problem.depth = query.size(3);
    problem.width = value.size(3);
    problem.shared_slots = query.size(0) == 1;
    problem.query = rows_of(query);
    problem.key = rows_of(key);
    problem.value = rows_of(value);
    problem.weight =
        weight_of<T>(key_weight, ops::compute_dtype(query), weight);
    problem.scale = static_cast<T>(scale);
    problem.dropout =
        dropout_of(dropout_p, seed, ops::DropoutMap::kPack, seed_holder);
  }
  /// Every sequence is one piece.
  bool whole() const {
    const Cut cut = tokens.cut(kPieces);
    return cut.begin == nullptr && cut.per_sequence == 1;
  }
  Sequences tokens;
  Tensor weight, seed_holder;
  SoftmaxProblem<T> problem = {};
};

std::tuple<Tensor, Tensor, Tensor> pack_attention_forward(
    const Tensor& query, const Tensor& key, const Tensor& value,
    const OptionalTensor& key_weight, const OptionalTensor& cu_seqlens_k,
    std::optional<double> scale, double dropout_p, const OptionalTensor& seed) {
  ops::check_pack_attention(query, key, value, key_weight, cu_seqlens_k,
                            dropout_p, seed);
  const c10::cuda::CUDAGuard guard(query.device());
  const auto wide = query.options().dtype(ops::compute_dtype(query));
  const int64_t sequences =
      ops::pack_attention_sequences(key, cu_seqlens_k).expect_int();
  Tensor output =
      at::empty({sequences, query.size(1), query.size(2), value.size(3)},
                query.options());
  Tensor unrounded = at::empty(
      ops::is_rounded(query) ? output.sizes() : at::IntArrayRef{0}, wide);
  Tensor stats = at::empty({2, sequences, query.size(1), query.size(2)}, wide);
  if (by_tensor_cores(query, value, query.size(2), scale_of(query, scale))) {
    const Tensor q = in_words(query), k = in_words(key), v = in_words(value);
    const Pack<float> pack(
        q, k, v, key_weight, cu_seqlens_k, scale_of(query, scale), dropout_p,
        seed,
        piece_of(key, cu_seqlens_k, query.size(2), /*pack_forward=*/true));
    SoftmaxForward<float> a = {};
    a.problem = pack.problem;
    a.out = rows_of(output);
    a.unrounded = rows_of(unrounded);
    a.max = stats.data_ptr<float>();
    a.inverse = a.max + stats.stride(0);
    a.stats_batch = stats.stride(1);
    a.stats_head = stats.stride(2);
    Tensor parts;
    if (!pack.whole()) {
      parts = at::empty({std::max<int64_t>(a.problem.tokens.bound, 1),
                         query.size(1), query.size(2), value.size(3) + 2},
                        wide);
      a.parts = parts.data_ptr<float>();
    }
    softmax_mma_forward(a, c10::cuda::getCurrentCUDAStream());
    return {output, unrounded, stats};
  }
  warn_of_portable_kernels("pack_attention", query);
  dispatch_compute(query, [&]<typename T>() {
    const Pack<T> pack(query, key, value, key_weight, cu_seqlens_k,
                       scale_of(query, scale), dropout_p, seed);
    SoftmaxForward<T> a = {};
    a.problem = pack.problem;
    a.out = rows_of(output);
    if (ops::is_rounded(query)) a.unrounded = rows_of(unrounded);
    a.max = stats.data_ptr<T>();
    a.inverse = a.max + stats.stride(0);
    a.stats_batch = stats.stride(1);
    a.stats_head = stats.stride(2);
    const Tensor parts = at::empty({a.problem.tokens.bound, query.size(1),
                                    query.size(2), value.size(3) + 2},
                                   wide);
    a.parts = parts.data_ptr<T>();
    softmax_forward(a, c10::cuda::getCurrentCUDAStream());
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
  const c10::cuda::CUDAGuard guard(query.device());
  Tensor grad_query = ops::empty_heads(query);
  Tensor grad_key = ops::empty_heads(key);
  Tensor grad_value = ops::empty_heads(value);
  Tensor grad_weight;
  weight_gradient &= key_weight.has_value();
  if (weight_gradient) {
    grad_weight =
        at::empty({key.size(0), key.size(1), key.size(2)}, stats.options());
  }
  const Tensor saved = stats.contiguous(), out = output.contiguous();
  if (!weight_gradient &&
      by_tensor_cores(query, value, query.size(2), scale_of(query, scale))) {
    const Tensor q = in_words(query), k = in_words(key), v = in_words(value),
                 upstream = in_words(grad_output);
    const Pack<float> pack(
        q, k, v, key_weight, cu_seqlens_k, scale_of(query, scale), dropout_p,
        seed,
        piece_of(key, cu_seqlens_k, query.size(2), /*pack_forward=*/false));
    SoftmaxMmaBackward a = {};
    a.problem = pack.problem;
    a.x = rows_of(k);
    a.y = rows_of(v);
    a.p = rows_of(q);
    if (pack.problem.shared_slots) a.p.batch = 0;
    a.z = rows_of(upstream);
    a.grad_x = rows_of(grad_key);
    a.grad_y = rows_of(grad_value);
    a.grad_p = rows_of(grad_query);
    a.max = saved.const_data_ptr<float>();
    a.inverse = a.max + saved.stride(0);
    a.output = out.const_data_ptr<float>();
    Tensor parts;
    if (!pack.whole() || query.size(0) != pack.tokens.count()) {
      parts = at::empty({std::max<int64_t>(a.problem.tokens.bound, 1),
                         query.size(1), query.size(2), query.size(3)},
                        stats.options());
      a.parts = parts.data_ptr<float>();
    }
    softmax_mma_backward(a, c10::cuda::getCurrentCUDAStream());
    return {grad_query, grad_key, grad_value, at::empty({0}, query.options())};
  }
  const Tensor upstream = with_unit_stride(grad_output);
  const Tensor delta = at::empty(
      {output.size(0), output.size(1), output.size(2)}, stats.options());
  dispatch_compute(query, [&]<typename T>() {
    const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
    const Pack<T> pack(query, key, value, key_weight, cu_seqlens_k,
                       scale_of(query, scale), dropout_p, seed);
    row_dots<T>(output.size(0), output.size(1), output.size(2), output.size(3),
                rows_of(upstream), rows_of(out), delta.data_ptr<T>(), stream);
    SoftmaxBackward<T> a = {};
    a.problem = pack.problem;
    a.grad_out = rows_of(upstream);
    a.max = saved.const_data_ptr<T>();
    a.inverse = a.max + saved.stride(0);
    a.delta = delta.const_data_ptr<T>();
    a.stats_batch = saved.stride(1);
    a.stats_head = saved.stride(2);
    const Tensor parts = at::empty(
        {a.problem.tokens.bound, query.size(1), query.size(2), query.size(3)},
        stats.options());
    a.parts = parts.data_ptr<T>();
    a.target = SoftmaxTarget::kQuery;
    a.grad = rows_of(grad_query);
    softmax_backward(a, stream);
    a.problem.tokens = pack.tokens.cut(kTiles);
    a.target = SoftmaxTarget::kKey;
    a.grad = rows_of(grad_key);
    if (weight_gradient) {
      a.grad_weight = grad_weight.data_ptr<T>();
      a.weight_batch = grad_weight.stride(0);
      a.weight_head = grad_weight.stride(1);
    }
    softmax_backward(a, stream);
    a.target = SoftmaxTarget::kValue;
    a.grad = rows_of(grad_value);
    softmax_backward(a, stream);
  });
  return {grad_query, grad_key, grad_value,
          weight_gradient ? like_weight(grad_weight, *key_weight)
                          : at::empty({0}, query.options())};
}

TORCH_LIBRARY_IMPL(luna, CUDA, m) {
  m.impl("pack_attention", pack_attention);
  m.impl("_pack_attention_forward", pack_attention_forward);
  m.impl("pack_attention_backward", pack_attention_backward);
}

}  // namespace
}  // namespace luna::cuda
