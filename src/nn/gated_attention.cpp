#include "nn/gated_attention.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>

#include <algorithm>

namespace luna::nn {
namespace {

constexpr int64_t kChunk = 64;

/// In which sums are kept.
at::ScalarType sums_type(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/// [v, 1].
at::Tensor with_ones(const at::Tensor& value) {
  auto sizes = value.sizes().vec();
  sizes.back() = 1;
  return at::cat({value, at::ones(sizes, value.options())}, -1);
}

/// Sums [..., dv + 1] to outputs [..., dv].
at::Tensor divide(const at::Tensor& sums, double eps) {
  const int64_t width = sums.size(-1) - 1;
  const auto below = sums.narrow(-1, width, 1);
  const auto small = at::full_like(below, eps).copysign(below);
  return sums.narrow(-1, 0, width) / at::where(below.abs() < eps, small, below);
}

/// Weights of keys as [B,H or 1,n].
at::Tensor as_heads(const at::Tensor& weight, at::ScalarType type) {
  return (weight.dim() == 2 ? weight.unsqueeze(1) : weight).to(type);
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> attend_gated(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& gate, const AttendOptions& options, double eps) {
  TORCH_CHECK_VALUE(options.causal,
                    "rff: gate: expected causal attention, got another");
  TORCH_CHECK_VALUE(!options.cu_seqlens_q && !options.cu_seqlens_k,
                    "rff: gate: expected no packed sequences, got some");
  // Sums of half precision would forget more than they are told to.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(
      c10::autocast_dispatch_keyset);
  const auto type = sums_type(value);
  const auto q = query.to(type), k = key.to(type);
  const auto v = with_ones(value.to(type));
  auto kept = at::log_sigmoid(gate.to(type));  // log g
  auto taken = at::sigmoid(-gate.to(type));    // 1 - g
  if (options.key_weight) {
    const auto weight = as_heads(*options.key_weight, type);
    kept = kept.masked_fill(weight == 0, 0);
    taken = taken * weight;
  }
  const int64_t length = q.size(2);
  auto state = options.state
                   ? options.state->to(type)
                   : at::zeros({q.size(0), q.size(1), q.size(3), v.size(3)},
                               q.options());
  std::vector<at::Tensor> parts{v.narrow(2, 0, 0)};
  for (int64_t first = 0; first < length; first += kChunk) {
    const int64_t count = std::min(kChunk, length - first);
    const auto piece = [&](const at::Tensor& x) {
      return x.narrow(2, first, count);
    };
    // log of the product of the gates from the chunk's start to each token
    const auto since = piece(kept).cumsum(-1);
    const auto later =
        at::ones({count, count}, q.options().dtype(at::kBool)).triu(1);
    const auto between = (since.unsqueeze(-1) - since.unsqueeze(-2))
                             .masked_fill(later, 0)
                             .exp()
                             .masked_fill(later, 0) *
                         piece(taken).unsqueeze(-2);
    const auto scores =
        at::matmul(piece(q), piece(k).transpose(-1, -2)) * between;
    parts.push_back(at::matmul(scores, piece(v)) +
                    since.exp().unsqueeze(-1) * at::matmul(piece(q), state));
    const auto all = since.narrow(-1, count - 1, 1);
    const auto weight = (all - since).exp() * piece(taken);
    state =
        all.exp().unsqueeze(-1) * state +
        at::matmul(piece(k).transpose(-1, -2), piece(v) * weight.unsqueeze(-1));
  }
  return {divide(at::cat(parts, 2), eps).to(value.scalar_type()), state};
}

at::Tensor step_gated(const at::Tensor& query, const at::Tensor& key,
                      const at::Tensor& value, const at::Tensor& gate,
                      at::Tensor state, const StepOptions& options,
                      double eps) {
  const auto type = state.scalar_type();
  auto kept = at::sigmoid(gate.to(type));
  auto taken = at::sigmoid(-gate.to(type));
  if (options.key_weight) {
    auto weight = options.key_weight->to(type);
    if (weight.dim() == 1) weight = weight.unsqueeze(1);
    kept = kept.masked_fill(weight == 0, 1);
    taken = taken * weight;
  }
  const auto row = with_ones(value.to(type)) * taken.unsqueeze(-1);
  state.mul_(kept.unsqueeze(-1).unsqueeze(-1))
      .add_(key.to(type).unsqueeze(-1) * row.unsqueeze(-2));
  return divide(at::matmul(query.to(type).unsqueeze(-2), state).squeeze(-2),
                eps)
      .to(value.scalar_type());
}

}  // namespace luna::nn
