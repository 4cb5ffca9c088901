#include "nn/packed_softmax.h"

#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "ops/fixed_order.h"

namespace luna::nn {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kMostWidth = 256;

/// Of query [n,H,d], key and value [m,H,d]. torch's own derivative is not in a
/// fixed order.
class Flash : public torch::autograd::Function<Flash> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& query,
                        const Tensor& key, const Tensor& value,
                        const Tensor& starts_q, const Tensor& starts_k,
                        int64_t longest, double dropout, bool causal) {
    at::AutoDispatchBelowADInplaceOrView below;
    const auto [output, logsumexp, random, unused, debug] =
        at::_flash_attention_forward(query, key, value, starts_q, starts_k,
                                     longest, longest, dropout, causal,
                                     /*return_debug_mask=*/false);
    ctx->save_for_backward({query, key, value, output, logsumexp, starts_q,
                            starts_k, random, unused});
    ctx->saved_data["longest"] = longest;
    ctx->saved_data["dropout"] = dropout;
    ctx->saved_data["causal"] = causal;
    return output;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto s = ctx->get_saved_variables();
    const auto longest = ctx->saved_data["longest"].toInt();
    std::optional<ops::FixedOrder> fixed;
    if (!ops::AnyOrder::is_allowed()) fixed.emplace();
    const auto [query, key, value] = at::_flash_attention_backward(
        grads[0].contiguous(), s[0], s[1], s[2], s[3], s[4], s[5], s[6],
        longest, longest, ctx->saved_data["dropout"].toDouble(),
        ctx->saved_data["causal"].toBool(), s[7], s[8]);
    return {query, key, value, {}, {}, {}, {}, {}};
  }
};

}  // namespace

bool packed_softmax_takes(const Tensor& query, const Tensor& key,
                          const Tensor& value, const AttendOptions& options) {
  const auto type = query.scalar_type();
  const auto width = query.size(3);
  return query.is_cuda() && (type == at::kBFloat16 || type == at::kHalf) &&
         key.scalar_type() == type && value.scalar_type() == type &&
         width % 8 == 0 && width <= kMostWidth && value.size(3) == width &&
         !options.key_weight && options.longest > 0;
}

Tensor packed_softmax(const Tensor& query, const Tensor& key,
                      const Tensor& value, const AttendOptions& options,
                      double dropout) {
  const auto rows = [](const Tensor& x) { return x[0].transpose(0, 1); };
  const auto starts = [](const Tensor& x) { return x.to(at::kInt); };
  const Tensor out = Flash::apply(
      rows(query), rows(key), rows(value), starts(*options.cu_seqlens_q),
      starts(*options.cu_seqlens_k), options.longest, dropout, options.causal);
  return out.transpose(0, 1).unsqueeze(0);
}

}  // namespace luna::nn
