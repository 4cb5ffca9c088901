#include "support/reference.h"

#include <ATen/ATen.h>

#include <cmath>
#include <optional>
#include <vector>

namespace luna::testing::reference {
namespace {

using at::Tensor;
using Optional = std::optional<Tensor>;

/// Where each packed sequence lies: pairs of (start, length).
std::vector<std::pair<int64_t, int64_t>> spans(const Tensor& cu_seqlens) {
  const Tensor ends = cu_seqlens.to(at::kCPU, at::kLong);
  std::vector<std::pair<int64_t, int64_t>> result;
  for (int64_t s = 0; s + 1 < ends.numel(); ++s) {
    const int64_t start = ends[s].item<int64_t>();
    result.emplace_back(start, ends[s + 1].item<int64_t>() - start);
  }
  return result;
}

/// Row `s` of a tensor with one row a sequence; the only row, if it is shared.
Tensor row(const Tensor& x, int64_t s) {
  return x.narrow(0, x.size(0) == 1 ? 0 : s, 1);
}

Optional row(const Optional& x, int64_t s) {
  return x ? Optional(row(*x, s)) : std::nullopt;
}

Optional last_narrow(const Optional& x, std::pair<int64_t, int64_t> span) {
  return x ? Optional(x->narrow(-1, span.first, span.second)) : std::nullopt;
}

/// key_weight as [B, H or 1, m] in the dtype of the sums.
Tensor spread_weight(const Optional& weight, const Tensor& key) {
  if (!weight) return at::ones({1, 1, key.size(2)}, key.options());
  const Tensor w = weight->to(key.scalar_type());
  return w.dim() == 2 ? w.unsqueeze(1) : w;
}

Tensor guard(const Tensor& den, double eps) {
  const Tensor held =
      at::where(den < 0, at::full_like(den, -eps), at::full_like(den, eps));
  return at::where(den.abs() < eps, held.detach(), den);
}

Tensor attend(const Tensor& query, const Tensor& key, const Tensor& value,
              const Optional& weight, std::optional<double> scale) {
  const double s = scale.value_or(1.0 / std::sqrt(query.size(3)));
  const Tensor scores = at::matmul(query, key.transpose(-1, -2)) * s;
  const Tensor w = spread_weight(weight, key).unsqueeze(2);
  return at::matmul(weighted_softmax(scores, w.expand_as(scores)), value);
}

}  // namespace

Tensor psi(const Tensor& u, const ops::FeatureMapParameters& p) {
  const Tensor hidden =
      at::relu(u.unsqueeze(-1).unsqueeze(-1) * p.hidden_weight + p.hidden_bias);
  return (hidden * p.output_weight).sum(-1) + p.output_bias;
}

Tensor project(const Tensor& x, const ops::FeatureMapParameters& p) {
  const bool per_head = p.projection.dim() == 3;
  return at::matmul(x, p.projection.transpose(-1, -2)) +
         (per_head ? p.projection_bias.unsqueeze(-2) : p.projection_bias);
}

Tensor feature_map(const Tensor& x, const ops::FeatureMapParameters& p,
                   bool nonneg) {
  Tensor features = psi(project(x, p), p);  // [..., M, L]
  if (nonneg) features = at::relu(features);
  return features.flatten(-2) / std::sqrt(p.projection.size(-2));
}

std::tuple<Tensor, Tensor> linear_attention(
    const Tensor& query, const Tensor& key, const Tensor& value,
    const ops::LinearAttentionOptions& options) {
  if (options.cu_seqlens_q) {
    const auto q_spans = spans(*options.cu_seqlens_q);
    const auto k_spans = spans(*options.cu_seqlens_k);
    std::vector<Tensor> outputs, states;
    for (size_t s = 0; s < q_spans.size(); ++s) {
      auto [start, length] = k_spans[s];
      const ops::LinearAttentionOptions one{
          .key_weight = last_narrow(options.key_weight, k_spans[s]),
          .causal = options.causal,
          .normalize = options.normalize,
          .eps = options.eps,
          .state = row(options.state, s)};
      auto [output, state] = reference::linear_attention(
          query.narrow(2, q_spans[s].first, q_spans[s].second),
          key.narrow(2, start, length), value.narrow(2, start, length), one);
      outputs.push_back(output);
      states.push_back(state);
    }
    return {at::cat(outputs, 2), at::cat(states, 0)};
  }
  const Tensor w = spread_weight(options.key_weight, key);
  const Tensor ones = at::ones_like(value.narrow(3, 0, 1));
  const Tensor terms = (key * w.unsqueeze(-1)).unsqueeze(-1) *
                       at::cat({value, ones}, 3).unsqueeze(-2);
  Tensor state = terms.sum(2);  // [B,H,F,dv+1]
  if (options.state) state = state + *options.state;
  // A row counts as masked when it has seen no weight above 0 and no state.
  Tensor sums, seen;
  if (options.causal) {
    Tensor states = terms.cumsum(2);  // [B,H,n,F,dv+1]
    if (options.state) states = states + options.state->unsqueeze(2);
    sums = (query.unsqueeze(-1) * states).sum(-2);
    seen = (w > 0).to(at::kLong).cumsum(-1) > 0;
  } else {
    sums = at::matmul(query, state);
    seen = (w > 0).any(-1, /*keepdim=*/true);
  }
  if (options.state) seen = at::ones_like(seen);
  const int64_t width = value.size(3);
  Tensor output = sums.narrow(3, 0, width);
  if (options.normalize) {
    output = output / guard(sums.narrow(3, width, 1), options.eps);
  }
  output = at::where(seen.unsqueeze(-1), output, at::zeros_like(output));
  return {output, state};
}

std::tuple<Tensor, Tensor> universal_attention(
    const Tensor& query, const Tensor& key, const Tensor& value,
    const ops::FeatureMapParameters& parameters,
    const ops::UniversalAttentionOptions& options) {
  return reference::linear_attention(
      feature_map(query, parameters, options.nonneg),
      feature_map(key, parameters, options.nonneg), value,
      {.key_weight = options.key_weight,
       .cu_seqlens_q = options.cu_seqlens_q,
       .cu_seqlens_k = options.cu_seqlens_k,
       .causal = options.causal,
       .normalize = true,
       .eps = options.eps,
       .state = options.state});
}

Tensor weighted_softmax(const Tensor& scores, const Tensor& weight) {
  if (scores.size(-1) == 0) return scores;
  const Tensor shown = scores.detach().masked_fill(weight <= 0, -INFINITY);
  Tensor highest = shown.amax(-1, true);
  const Tensor alive = at::isfinite(highest);
  highest = at::where(alive, highest, at::zeros_like(highest));
  // Masked scores may lie far above the highest one shown: e^x stays finite,
  // as the gradient of a weight of 0 needs it to.
  const Tensor terms = weight * (scores - highest).clamp_max(80).exp();
  const Tensor total = terms.sum(-1, true);
  const Tensor p = terms / at::where(alive, total, at::ones_like(total));
  return p * alive.to(p.scalar_type());
}

Tensor pack_attention(const Tensor& query, const Tensor& key,
                      const Tensor& value,
                      const ops::PackAttentionOptions& options) {
  if (!options.cu_seqlens_k) {
    return attend(query, key, value, options.key_weight, options.scale);
  }
  std::vector<Tensor> outputs;
  for (auto span : spans(*options.cu_seqlens_k)) {
    outputs.push_back(attend(
        row(query, outputs.size()), key.narrow(2, span.first, span.second),
        value.narrow(2, span.first, span.second),
        last_narrow(options.key_weight, span), options.scale));
  }
  return at::cat(outputs, 0);
}

Tensor unpack_attention(const Tensor& query, const Tensor& key,
                        const Tensor& value,
                        const ops::UnpackAttentionOptions& options) {
  if (!options.cu_seqlens_q) {
    return attend(query, key, value, options.key_weight, options.scale);
  }
  std::vector<Tensor> outputs;
  for (auto [start, length] : spans(*options.cu_seqlens_q)) {
    const int64_t s = outputs.size();
    outputs.push_back(attend(query.narrow(2, start, length), row(key, s),
                             row(value, s), row(options.key_weight, s),
                             options.scale));
  }
  return at::cat(outputs, 2);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> nested_causal_attention(
    const Tensor& query, const Tensor& pack_key, const Tensor& key,
    const Tensor& value, const Tensor& packed_query,
    const ops::NestedCausalAttentionOptions& options) {
  if (options.cu_seqlens) {
    std::vector<Tensor> outputs, key_states, value_states, counts;
    for (auto [start, length] : spans(*options.cu_seqlens)) {
      const int64_t s = outputs.size();
      const ops::NestedCausalAttentionOptions one{
          .packed_mask = row(options.packed_mask, s),
          .activation = options.activation,
          .scale = options.scale,
          .key_state = row(options.key_state, s),
          .value_state = row(options.value_state, s),
          .count = row(options.count, s)};
      auto [output, key_state, value_state, count] =
          reference::nested_causal_attention(
              query.narrow(2, start, length), pack_key.narrow(2, start, length),
              key.narrow(2, start, length), value.narrow(2, start, length),
              row(packed_query, s), one);
      outputs.push_back(output);
      key_states.push_back(key_state);
      value_states.push_back(value_state);
      counts.push_back(count);
    }
    return {at::cat(outputs, 2), at::cat(key_states, 0),
            at::cat(value_states, 0), at::cat(counts, 0)};
  }
  const int64_t batch = query.size(0), n = query.size(2);
  const double s = options.scale.value_or(1.0 / std::sqrt(query.size(3)));
  const Tensor x = at::matmul(pack_key, packed_query.transpose(-1, -2) * s);
  const Tensor a = options.activation == "elu"
                       ? at::elu(x) + 1
                       : at::logaddexp2(x, at::zeros_like(x));
  const Tensor key_terms = key.unsqueeze(-1) * a.unsqueeze(-2);
  const Tensor value_terms = a.unsqueeze(-1) * value.unsqueeze(-2);
  Tensor key_state = key_terms.sum(2), value_state = value_terms.sum(2);
  Tensor key_states = key_terms.cumsum(2), value_states = value_terms.cumsum(2);
  Tensor count = at::zeros({batch}, query.options().dtype(at::kLong));
  if (options.count) {
    key_state = key_state + *options.key_state;
    value_state = value_state + *options.value_state;
    key_states = key_states + options.key_state->unsqueeze(2);
    value_states = value_states + options.value_state->unsqueeze(2);
    count = *options.count;
  }
  const Tensor t = (count.unsqueeze(1) + at::arange(1, n + 1, count.options()))
                       .to(query.scalar_type())
                       .view({batch, 1, n, 1});
  const Tensor u = (query.unsqueeze(-1) * key_states).sum(-2) * s / t;
  const Tensor mask =
      options.packed_mask
          ? options.packed_mask->to(u.scalar_type()).unsqueeze(1).unsqueeze(1)
          : at::ones({1}, u.options());
  const Tensor w = weighted_softmax(u, mask.expand_as(u));
  const Tensor output = (w.unsqueeze(-1) * value_states).sum(-2) / t;
  return {output, key_state, value_state, count + n};
}

}  // namespace luna::testing::reference
