#include "ops/unpack_attention.h"

#include <torch/library.h>

#include "ops/cuda/softmax_problem.h"
#include "ops/heads.h"

namespace luna::cuda {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

enum { kTiles, kPieces };

template <typename T>
struct Unpack {
  Unpack(const Tensor& query, const Tensor& key, const Tensor& value,
         const OptionalTensor& key_weight, const OptionalTensor& cu_seqlens,
         double scale, double dropout_p, const OptionalTensor& seed,
         int64_t piece = kSoftmaxPiece)
      : tokens(query, cu_seqlens, query.size(0), query.size(2), {64, piece}) {
    problem.pack = false;
    problem.tokens = tokens.cut(kTiles);
    problem.heads = query.size(1);
    problem.slots = key.size(2);
    problem.depth = query.size(3);
    problem.width = value.size(3);
    problem.query = rows_of(query);
    problem.key = rows_of(key);
    problem.value = rows_of(value);
    problem.weight =
        weight_of<T>(key_weight, ops::compute_dtype(query), weight);
    problem.scale = static_cast<T>(scale);
    problem.dropout =
        dropout_of(dropout_p, seed, ops::DropoutMap::kUnpack, seed_holder);
  }
  Sequences tokens;
  Tensor weight, seed_holder;
  SoftmaxProblem<T> problem = {};
};

/// `logsumexp`, [batch, heads, length] to the base 2, is filled in where
/// softmax_wgmma.h's backward will ask for it, else zeros.
Tensor forward(const Tensor& query, const Tensor& key, const Tensor& value,
               const OptionalTensor& key_weight,
               const OptionalTensor& cu_seqlens_q, std::optional<double> scale,
               double dropout_p, const OptionalTensor& seed,
               const OptionalTensor& logsumexp) {
  ops::check_unpack_attention(query, key, value, key_weight, cu_seqlens_q,
                              dropout_p, seed);
  const c10::cuda::CUDAGuard guard(query.device());
  Tensor output = ops::empty_heads(query, query.size(2), value.size(3));
  const bool token = query.size(2) == 1 &&
                     key.size(2) <= ops::kUnpackTokenSlots && !cu_seqlens_q &&
                     dropout_p == 0 && !logsumexp;
  if (!token &&
      by_tensor_cores(query, value, key.size(2), scale_of(query, scale))) {
    const Tensor q = in_words(query), k = in_words(key), v = in_words(value);
    const Unpack<float> unpack(
        q, k, v, key_weight, cu_seqlens_q, scale_of(query, scale), dropout_p,
        seed,
        piece_of(query, cu_seqlens_q, key.size(2), /*pack_forward=*/false));
    SoftmaxForward<float> a = {};
    a.problem = unpack.problem;
    a.problem.tokens = unpack.tokens.cut(kPieces);
    a.out = rows_of(output);
    if (logsumexp.has_value() && softmax_wgmma_fits(a.problem)) {
      a.max = logsumexp->data_ptr<float>();
      a.stats_batch = logsumexp->stride(0);
      a.stats_head = logsumexp->stride(1);
    } else if (logsumexp.has_value()) {
      logsumexp->zero_();
    }
    softmax_mma_forward(a, c10::cuda::getCurrentCUDAStream());
    return output;
  }
  if (logsumexp.has_value()) logsumexp->zero_();
  if (!token) warn_of_portable_kernels("unpack_attention", query);
  dispatch_compute(query, [&]<typename T>() {
    const Unpack<T> unpack(query, key, value, key_weight, cu_seqlens_q,
                           scale_of(query, scale), dropout_p, seed);
    SoftmaxForward<T> a = {};
    a.problem = unpack.problem;
    a.out = rows_of(output);
    (token ? unpack_token<T>
           : softmax_forward<T>)(a, c10::cuda::getCurrentCUDAStream());
  });
  return output;
}

Tensor unpack_attention(const Tensor& query, const Tensor& key,
                        const Tensor& value, const OptionalTensor& key_weight,
                        const OptionalTensor& cu_seqlens_q,
                        std::optional<double> scale, double dropout_p,
                        const OptionalTensor& seed) {
  return forward(query, key, value, key_weight, cu_seqlens_q, scale, dropout_p,
                 seed, {});
}

std::tuple<Tensor, Tensor> unpack_attention_forward(
    const Tensor& query, const Tensor& key, const Tensor& value,
    const OptionalTensor& key_weight, const OptionalTensor& cu_seqlens_q,
    std::optional<double> scale, double dropout_p, const OptionalTensor& seed) {
  const Tensor logsumexp =
      at::empty({query.size(0), query.size(1), query.size(2)},
                query.options().dtype(ops::compute_dtype(query)));
  return {forward(query, key, value, key_weight, cu_seqlens_q, scale, dropout_p,
                  seed, logsumexp),
          logsumexp};
}

// The rows' maxima, sums and outputs are made again, but where
// softmax_wgmma.h's kernels serve, who left them there.
std::tuple<Tensor, Tensor, Tensor, Tensor> unpack_attention_backward(
    const Tensor& grad_output, const Tensor& query, const Tensor& key,
    const Tensor& value, const OptionalTensor& output,
    const OptionalTensor& logsumexp, const OptionalTensor& key_weight,
    const OptionalTensor& cu_seqlens_q, std::optional<double> scale,
    double dropout_p, const OptionalTensor& seed, bool weight_gradient) {
  ops::check_unpack_attention_backward(grad_output, query, key, value, output,
                                       logsumexp, key_weight, cu_seqlens_q,
                                       dropout_p, seed);
  const c10::cuda::CUDAGuard guard(query.device());
  const auto wide = query.options().dtype(ops::compute_dtype(query));
  Tensor grad_query = ops::empty_heads(query);
  Tensor grad_key = ops::empty_heads(key);
  Tensor grad_value = ops::empty_heads(value);
  weight_gradient &= key_weight.has_value();
  Tensor grad_weight;
  if (weight_gradient) {
    grad_weight = at::empty({key.size(0), key.size(1), key.size(2)}, wide);
  }
  if (!weight_gradient &&
      by_tensor_cores(query, value, key.size(2), scale_of(query, scale))) {
    const Tensor q = in_words(query), k = in_words(key), v = in_words(value),
                 upstream = in_words(grad_output);
    const Unpack<float> unpack(
        q, k, v, key_weight, cu_seqlens_q, scale_of(query, scale), dropout_p,
        seed,
        piece_of(query, cu_seqlens_q, key.size(2), /*pack_forward=*/false));
    SoftmaxMmaBackward a = {};
    a.problem = unpack.problem;
    const Cut cut = a.problem.tokens = unpack.tokens.cut(kPieces);
    a.x = rows_of(q);
    a.y = rows_of(upstream);
    a.p = rows_of(k);
    a.z = rows_of(v);
    a.grad_x = rows_of(grad_query);
    a.grad_p = rows_of(grad_key);
    a.grad_z = rows_of(grad_value);
    Tensor rows, parts, saved_rows, saved_output;
    a.length = query.size(2);
    if (logsumexp.has_value()) {
      saved_rows = logsumexp->contiguous();
      saved_output = in_words(*output);
      a.logsumexp = saved_rows.const_data_ptr<float>();
      a.out = rows_of(saved_output);
    }
    if (key.size(2) > 16) {
      rows = at::empty({2, query.size(0), query.size(1), query.size(2)}, wide);
      a.rows = rows.data_ptr<float>();
    }
    if (cut.begin != nullptr || cut.per_sequence != 1) {
      parts = at::empty({std::max<int64_t>(cut.bound, 1), query.size(1),
                         key.size(2), key.size(3) + value.size(3)},
                        wide);
      a.parts = parts.data_ptr<float>();
    }
    softmax_mma_backward(a, c10::cuda::getCurrentCUDAStream());
    return {grad_query, grad_key, grad_value, at::empty({0}, query.options())};
  }
  const Tensor upstream = with_unit_stride(grad_output);
  const int64_t batch = query.size(0), heads = query.size(1), n = query.size(2),
                width = value.size(3);
  const Tensor unrounded = at::empty({batch, heads, n, width}, wide);
  const Tensor stats = at::empty({3, batch, heads, n}, wide);
  dispatch_compute(query, [&]<typename T>() {
    const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
    const Unpack<T> unpack(query, key, value, key_weight, cu_seqlens_q,
                           scale_of(query, scale), dropout_p, seed);
    T* max = stats.data_ptr<T>();
    T* inverse = max + stats.stride(0);
    T* delta = inverse + stats.stride(0);
    SoftmaxForward<T> f = {};
    f.problem = unpack.problem;
    f.out = rows_of(unrounded);
    f.max = max;
    f.inverse = inverse;
    f.stats_batch = stats.stride(1);
    f.stats_head = stats.stride(2);
    softmax_forward(f, stream);
    row_dots<T>(batch, heads, n, width, rows_of(upstream), rows_of(unrounded),
                delta, stream);
    SoftmaxBackward<T> a = {};
    a.problem = unpack.problem;
    a.grad_out = rows_of(upstream);
    a.max = max;
    a.inverse = inverse;
    a.delta = delta;
    a.stats_batch = stats.stride(1);
    a.stats_head = stats.stride(2);
    a.target = SoftmaxTarget::kQuery;
    a.grad = rows_of(grad_query);
    softmax_backward(a, stream);
    a.problem.tokens = unpack.tokens.cut(kPieces);
    const Tensor parts = at::empty({a.problem.tokens.bound, heads, key.size(2),
                                    std::max(key.size(3) + 1, width)},
                                   wide);
    a.parts = parts.data_ptr<T>();
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
  m.impl("unpack_attention", unpack_attention);
  m.impl("_unpack_attention_forward", unpack_attention_forward);
  m.impl("unpack_attention_backward", unpack_attention_backward);
}

}  // namespace
}  // namespace luna::cuda
