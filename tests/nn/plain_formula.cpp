#include "nn/plain_formula.h"

#include <cmath>
#include <limits>

namespace luna::nn::testing {
namespace {

at::Tensor merge(const at::Tensor& x) {
  return x.permute({0, 2, 1, 3}).reshape({x.size(0), x.size(2), -1});
}

/// Unnormalised similarities [B,H,n,m] of a head-level mechanism.
at::Tensor kernel(const std::string& name, const Weights& weights,
                  const at::Tensor& q, const at::Tensor& k) {
  const double d = static_cast<double>(q.size(-1));
  const auto dots = [](const at::Tensor& a, const at::Tensor& b) {
    return at::matmul(a, b.transpose(-1, -2));
  };
  if (name == "softmax") return (dots(q, k) / std::sqrt(d)).exp();
  if (name == "linear") {
    const auto elu_plus_one = [](const at::Tensor& x) {
      return at::where(x > 0, x + 1, x.exp());
    };
    return dots(elu_plus_one(q), elu_plus_one(k));
  }
  if (name == "universal") {
    return dots(plain_feature_map(weights, "feature_map.", q),
                plain_feature_map(weights, "feature_map.", k));
  }
  if (name == "rff") {
    const auto w = weights["feature_map.random_projection"];
    const auto angle = [&](const at::Tensor& x) {
      return at::matmul(x / std::pow(d, 0.25), w.t());
    };
    // sin a sin b + cos a cos b = cos(a - b)
    return (angle(q).unsqueeze(-2) - angle(k).unsqueeze(-3)).cos().mean(-1);
  }
  ADD_FAILURE() << "write the plain formula of " << name;
  return dots(q, k);
}

at::Tensor softmax_over(const at::Tensor& scores, const at::Tensor& used) {
  return scores
      .masked_fill(used.logical_not(), -std::numeric_limits<double>::infinity())
      .softmax(-1);
}

}  // namespace

at::Tensor plain_feature_map(const Weights& weights, const std::string& prefix,
                             const at::Tensor& x, bool nonneg) {
  const auto w = weights[prefix + "projection"];
  const auto b = weights[prefix + "projection_bias"];
  const auto u = at::matmul(x, w.transpose(-1, -2)) +
                 (b.dim() == 2 ? b.unsqueeze(-2) : b);  // [...,M]
  const auto hidden =
      (u.unsqueeze(-1).unsqueeze(-1) * weights[prefix + "hidden_weight"] +
       weights[prefix + "hidden_bias"])
          .relu();  // [...,M,L or 1,h]
  auto psi = (hidden * weights[prefix + "output_weight"]).sum(-1) +
             weights[prefix + "output_bias"];  // [...,M,L]
  if (nonneg) psi = psi.relu();
  return psi.flatten(-2) / std::sqrt(static_cast<double>(u.size(-1)));
}

std::tuple<at::Tensor, at::Tensor> plain_nested(
    const Weights& weights, bool tied, int64_t pack_heads, const at::Tensor& x,
    const at::Tensor& context, const at::Tensor& memory,
    const at::Tensor& key_mask, const at::Tensor& used) {
  const auto attend = [](const at::Tensor& q, const at::Tensor& k,
                         const at::Tensor& v, const at::Tensor& seen) {
    const double s = 1 / std::sqrt(static_cast<double>(q.size(-1)));
    const auto scores = at::matmul(q * s, k.transpose(-1, -2));
    return merge(
        at::matmul(softmax_over(scores, seen.unsqueeze(1).unsqueeze(1)), v));
  };
  const auto packed =
      attend(weights.heads("pq_proj", memory, pack_heads),
             weights.heads(tied ? "pc_proj" : "pk_proj", context, pack_heads),
             weights.heads(tied ? "pc_proj" : "pv_proj", context, pack_heads),
             key_mask);
  const auto y =
      attend(weights.heads("q_proj", x, kHeads),
             weights.heads(tied ? "c_proj" : "k_proj", packed, kHeads),
             weights.heads(tied ? "c_proj" : "v_proj", packed, kHeads), used);
  return {weights.linear("out_proj", y), packed};
}

at::Tensor plain_nested_causal(const Weights& weights, bool tied,
                               const std::string& activation,
                               const at::Tensor& x, const at::Tensor& memory) {
  const auto q = weights.heads("q_proj", x, kHeads);
  const auto pc = weights.heads("pc_proj", x, kHeads);
  const auto k = weights.heads(tied ? "c_proj" : "k_proj", x, kHeads);
  const auto v = weights.heads(tied ? "c_proj" : "v_proj", x, kHeads);
  const double s = 1 / std::sqrt(static_cast<double>(q.size(-1)));
  const auto pq = weights.heads("pq_proj", memory, kHeads) * s;
  auto a = at::matmul(pc, pq.transpose(-1, -2));  // [B,H,n,l]
  a = activation == "softplus" ? (at::pow(2.0, a) + 1).log2()
                               : at::where(a > 0, a + 1, a.exp());
  std::vector<at::Tensor> rows;
  for (int64_t t = 1; t <= x.size(1); ++t) {
    const auto seen = a.narrow(2, 0, t).transpose(-1, -2);  // [B,H,l,t]
    const auto key_sum = at::matmul(seen, k.narrow(2, 0, t)) / t;
    const auto value_sum = at::matmul(seen, v.narrow(2, 0, t)) / t;
    const auto u =
        at::matmul(q.narrow(2, t - 1, 1) * s, key_sum.transpose(-1, -2));
    rows.push_back(at::matmul(u.softmax(-1), value_sum));
  }
  return weights.linear("out_proj", merge(at::cat(rows, 2)));
}

at::Tensor plain_layer(const Form& form, const torch::nn::Module& module,
                       const at::Tensor& x, const nn::LayerInput& input) {
  const Weights weights(module);
  const auto context = input.context.value_or(x);
  const auto mask = input.key_mask.value_or(
      at::ones({context.size(0), context.size(1)}, at::kBool));
  if (form.name == "nested") {
    const auto memory = input.memory->expand({x.size(0), kMemory, kWidth});
    if (form.causal) {
      return plain_nested_causal(weights, true, "softplus", x, memory);
    }
    const auto used = at::arange(kMemory).lt(mask.sum(1).unsqueeze(1));
    return std::get<0>(
        plain_nested(weights, true, kHeads, x, context, memory, mask, used));
  }
  auto similarity =
      kernel(form.name, weights, weights.heads("q_proj", x, kHeads),
             weights.heads("k_proj", context, kHeads)) *
      mask.unsqueeze(1).unsqueeze(1);
  if (form.causal) similarity = similarity.tril();
  const auto map = similarity / similarity.sum(-1, true);
  return weights.linear(
      "out_proj",
      merge(at::matmul(map, weights.heads("v_proj", context, kHeads))));
}

}  // namespace luna::nn::testing
