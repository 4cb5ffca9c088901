#include <ATen/ATen.h>
#include <luna/nn/softmax_attention.h>

#include "nn/packed_softmax.h"

#include <limits>
#include <vector>

namespace luna::nn {
namespace {

/// What is added to the scores [B,H or 1,n or 1,m]; none where nothing is.
std::optional<at::Tensor> score_bias(const at::Tensor& query,
                                     const at::Tensor& key,
                                     const AttendOptions& options) {
  if (!options.key_weight) return std::nullopt;
  const double minus_infinity = -std::numeric_limits<double>::infinity();
  auto weight = *options.key_weight;
  weight = (weight.dim() == 2 ? weight.unsqueeze(1) : weight).unsqueeze(2);
  at::Tensor bias;
  if (weight.scalar_type() == at::kBool) {
    bias = at::zeros_like(weight, query.options())
               .masked_fill(weight.logical_not(), minus_infinity);
  } else {
    // The logarithm's slope at 0 is infinite: keep it out of the gradient.
    const auto removed = weight.eq(0);
    bias = weight.masked_fill(removed, 1.0)
               .log()
               .to(query.scalar_type())
               .masked_fill(removed, minus_infinity);
  }
  if (options.causal) {
    const auto future =
        at::ones({query.size(2), key.size(2)}, query.options().dtype(at::kBool))
            .triu(1);
    bias = bias.masked_fill(future, minus_infinity);
  }
  return bias;
}

}  // namespace

SoftmaxAttentionImpl::SoftmaxAttentionImpl(
    HeadShape, const SoftmaxAttentionOptions& options)
    : options_(options) {
  config::check_options("softmax", options);
}

std::tuple<at::Tensor, at::Tensor> SoftmaxAttentionImpl::attend(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const AttendOptions& options) {
  TORCH_CHECK_VALUE(!options.state,
                    "softmax: expected no state (it keeps none of constant "
                    "size), got one");
  if (options.cu_seqlens_q || options.cu_seqlens_k) {
    return {attend_packed(query, key, value, options), at::Tensor()};
  }
  TORCH_CHECK_VALUE(!options.causal || query.size(2) == key.size(2),
                    "softmax: expected as many keys as queries with causal, "
                    "got ",
                    key.size(2), " keys and ", query.size(2), " queries");
  const auto bias = score_bias(query, key, options);
  return {at::scaled_dot_product_attention(
              query, key, value, bias, is_training() ? options_.dropout : 0.0,
              /*is_causal=*/options.causal && !bias),
          at::Tensor()};
}

at::Tensor SoftmaxAttentionImpl::attend_packed(const at::Tensor& query,
                                               const at::Tensor& key,
                                               const at::Tensor& value,
                                               const AttendOptions& options) {
  TORCH_CHECK_VALUE(options.cu_seqlens_q && options.cu_seqlens_k,
                    "softmax: expected both cu_seqlens_q and cu_seqlens_k, got "
                    "one of them");
  if (packed_softmax_takes(query, key, value, options)) {
    return packed_softmax(query, key, value, options,
                          is_training() ? options_.dropout : 0.0);
  }
  // One call a sequence: right, not fast; the lengths are read on the host.
  const auto starts_q = options.cu_seqlens_q->to(at::kCPU, at::kLong);
  const auto starts_k = options.cu_seqlens_k->to(at::kCPU, at::kLong);
  TORCH_CHECK_VALUE(starts_q.sizes() == starts_k.sizes(),
                    "softmax: expected cu_seqlens_k of shape ",
                    starts_q.sizes(), " (cu_seqlens_q's), got ",
                    starts_k.sizes());
  std::vector<at::Tensor> outputs{value.narrow(2, 0, 0)};
  for (int64_t i = 0; i + 1 < starts_q.numel(); ++i) {
    const auto cut = [i](const at::Tensor& x, const at::Tensor& starts,
                         int64_t dim) {
      const auto begin = starts[i].item<int64_t>();
      return x.narrow(dim, begin, starts[i + 1].item<int64_t>() - begin);
    };
    AttendOptions one;
    one.causal = options.causal;
    if (options.key_weight) {
      one.key_weight = cut(*options.key_weight, starts_k, -1);
    }
    outputs.push_back(
        std::get<0>(attend(cut(query, starts_q, 2), cut(key, starts_k, 2),
                           cut(value, starts_k, 2), one)));
  }
  return at::cat(outputs, 2);
}

}  // namespace luna::nn
