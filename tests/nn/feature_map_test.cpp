#include <luna/nn/feature_map.h>

#include <cmath>

#include "nn/layers.h"
#include "nn/plain_formula.h"

namespace luna::nn::testing {
namespace {

constexpr int64_t kHeadDim = 4;

nn::FeatureMap make(const nn::FeatureMapOptions& options) {
  nn::FeatureMap map(nn::HeadShape{kHeadDim, kHeads}, options);
  map->to(at::kDouble);
  randomize(*map, 1);
  return map;
}

nn::FeatureMapOptions small() {
  nn::FeatureMapOptions options;
  options.M = 5;
  options.L = 3;
  options.hidden = 6;
  return options;
}

struct Heads {
  at::Tensor q, k, v;
  explicit Heads(int64_t n = 6, int64_t m = 6)
      : q(Random(2).normal({2, kHeads, n, kHeadDim})),
        k(Random(3).normal({2, kHeads, m, kHeadDim})),
        v(Random(4).normal({2, kHeads, m, 3})) {}
};

/// phi(q) phi(k)^T, keys weighed, rows normalised, times v.
at::Tensor plain_attention(const at::Tensor& phi_q, const at::Tensor& phi_k,
                           const at::Tensor& v, const at::Tensor& weight) {
  const auto map =
      at::matmul(phi_q, phi_k.transpose(-1, -2)) * weight.unsqueeze(-2);
  return at::matmul(map / map.sum(-1, true), v);
}

TEST(FeatureMapModule, MatchesTheNetworks) {
  for (const bool shared : {false, true}) {
    for (const bool nonneg : {false, true}) {
      for (const bool per_head : {false, true}) {
        auto options = small();
        options.shared_channels = shared;
        options.nonneg = nonneg;
        options.per_head = per_head;
        auto map = make(options);
        const auto x = Random(2).normal({2, kHeads, 6, kHeadDim}, 2);
        expect_near(map(x), plain_feature_map(Weights(*map), "", x, nonneg));
      }
    }
  }
}

TEST(FeatureMapModule, StartsAsThePaperAndTorchDo) {
  at::manual_seed(11);
  nn::FeatureMapOptions options;
  options.M = 64;
  options.L = 32;
  nn::FeatureMap map(64, options);
  EXPECT_NEAR(map->projection.std().item<double>(), 1 / 8.0, 0.005);
  EXPECT_EQ(map->projection_bias.abs().max().item<double>(), 0);
  const auto uniform = [](const at::Tensor& x, double bound, double slack) {
    EXPECT_LE(x.abs().max().item<double>(), bound);
    EXPECT_NEAR(x.mean().item<double>(), 0, slack * bound);
    EXPECT_NEAR(x.std().item<double>(), bound / std::sqrt(3), slack * bound);
  };
  uniform(map->hidden_weight, 1, 0.05);
  uniform(map->hidden_bias, 1, 0.05);
  uniform(map->output_weight, 1 / 8.0, 0.05);
  uniform(map->output_bias, 1 / 8.0, 0.5);
}

TEST(FeatureMapModule, GatedStartsAsUngated) {
  at::manual_seed(11);
  auto options = small();
  options.gated = true;
  nn::FeatureMap gated(kHeadDim, options);
  nn::FeatureMap plain(kHeadDim, small());
  gated->to(at::kDouble);
  plain->to(at::kDouble);
  {
    at::NoGradGuard no_grad;
    for (auto& parameter : plain->named_parameters()) {
      parameter.value().copy_(gated->named_parameters()[parameter.key()]);
    }
  }
  const Heads heads;
  // The gate's bias is drawn in float32.
  expect_near(gated(heads.q), plain(heads.q), 1e-6);
  expect_near(std::get<0>(gated->attend(heads.q, heads.k, heads.v)),
              std::get<0>(plain->attend(heads.q, heads.k, heads.v)), 1e-6);
}

TEST(FeatureMapModule, GateWeighsKeys) {
  auto options = small();
  options.gated = true;
  auto map = make(options);
  const Weights weights(*map);
  const Heads heads;
  const auto h = at::log1p(
      (at::matmul(heads.k, weights["gate_weight"]) + weights["gate_bias"])
          .exp());
  const auto phi_q = plain_feature_map(weights, "", heads.q);
  const auto phi_k = plain_feature_map(weights, "", heads.k);
  expect_near(map(heads.k), phi_k * h.unsqueeze(-1));

  const auto mask = mask_of({6, 2}, 6);
  const auto soft = Random(6).uniform({2, kHeads, 6}, 0, 2);
  nn::AttendOptions attend;
  for (const auto& weight : {at::Tensor(), mask, soft}) {
    attend.key_weight = weight.defined() ? std::optional(weight) : std::nullopt;
    const auto full = !weight.defined()   ? at::ones({2, 1, 6}, at::kDouble)
                      : weight.dim() == 2 ? weight.unsqueeze(1)
                                          : weight;
    const auto [actual, state] = map->attend(heads.q, heads.k, heads.v, attend);
    expect_near(actual, plain_attention(phi_q, phi_k, heads.v, h * full));
  }
}

TEST(FeatureMapModule, GatedStepMatchesAttend) {
  at::NoGradGuard no_grad;
  auto options = small();
  options.gated = true;
  auto map = make(options);
  const Heads heads;
  nn::AttendOptions attend;
  attend.causal = true;
  attend.key_weight = Random(6).uniform({2, 6}, 0, 2);
  const auto [expected, end] = map->attend(heads.q, heads.k, heads.v, attend);
  auto state = at::zeros_like(end);
  nn::StepOptions step;
  step.prepared = map->prepare();
  for (int64_t t = 0; t < 6; ++t) {
    step.key_weight = attend.key_weight->select(1, t);
    expect_near(map->step(heads.q.select(2, t), heads.k.select(2, t),
                          heads.v.select(2, t), state, step),
                expected.select(2, t));
  }
  expect_near(state, end);
}

/// SPEC: per channel, times min(1, 0.1 / (rms + 1e-6)).
at::Tensor plain_ch_rms(const at::Tensor& phi, const at::Tensor& mask,
                        int64_t M) {
  const auto psi = phi.reshape({phi.size(0), phi.size(1), phi.size(2), M, -1}) *
                   std::sqrt(static_cast<double>(M));
  std::vector<at::Tensor> valid;  // [H,n_i,M,L] of each sample
  for (int64_t i = 0; i < psi.size(0); ++i) {
    valid.push_back(psi[i].index_select(1, mask[i].nonzero().flatten()));
  }
  const auto rms = at::cat(valid, 1).square().mean({0, 1, 2}).sqrt();
  const auto scale = at::minimum(at::ones_like(rms), 0.1 / (rms + 1e-6));
  return (psi * scale).flatten(-2) / std::sqrt(static_cast<double>(M));
}

TEST(FeatureMapModule, ChRmsMatchesFormula) {
  auto options = small();
  options.ch_rms = true;
  auto map = make(options);
  {
    at::NoGradGuard no_grad;
    map->output_weight[0].mul_(0.01);  // a channel below 0.1: left alone
    map->output_bias[0].fill_(0.01);
    map->output_bias[1].fill_(1);  // above
  }
  const Weights weights(*map);
  const Heads heads(4, 6);
  nn::AttendOptions attend;
  attend.key_weight = mask_of({6, 2}, 6);
  attend.query_mask = mask_of({1, 4}, 4);
  const auto plain = [&](const at::Tensor& x, const at::Tensor& mask) {
    return plain_ch_rms(plain_feature_map(weights, "", x), mask, options.M);
  };
  const auto phi_q = plain(heads.q, *attend.query_mask);
  const auto phi_k = plain(heads.k, *attend.key_weight);
  EXPECT_TRUE(at::allclose(  // the formula itself scales one, not the other
      phi_k.select(-1, 0),
      plain_feature_map(weights, "", heads.k).select(-1, 0)));
  EXPECT_FALSE(
      at::allclose(phi_k.select(-1, 1),
                   plain_feature_map(weights, "", heads.k).select(-1, 1)));
  const auto expected =
      plain_attention(phi_q, phi_k, heads.v, attend.key_weight->unsqueeze(1));
  const auto [actual, state] = map->attend(heads.q, heads.k, heads.v, attend);
  expect_near(actual, expected);
  expect_near(map->forward(heads.k, attend.key_weight), phi_k);

  // The gradient goes through the statistic.
  const auto cotangent = Random(8).normal(expected.sizes());
  const auto gradients = [&](const at::Tensor& y) {
    for (auto& parameter : map->parameters()) parameter.mutable_grad().reset();
    (y * cotangent).sum().backward();
    std::vector<at::Tensor> all;
    for (auto& parameter : map->parameters()) all.push_back(parameter.grad());
    return all;
  };
  const auto wanted = gradients(expected);
  const auto got = gradients(actual);
  for (size_t i = 0; i < got.size(); ++i) expect_near(got[i], wanted[i]);
}

// In a layer that attends to itself the mask holds for queries too.
TEST(FeatureMapModule, ChRmsCountsValidTokensOnly) {
  const Layer layer({"universal", false}, {{"ch_rms", true}});
  randomize(*layer.module, 1);
  layer.module->named_parameters()["feature_map.output_bias"].data().fill_(1);
  const auto x = Random(2).normal({2, 6, kWidth});
  nn::LayerInput input;
  input.key_mask = mask_of({6, 2}, 6);
  const auto before = layer->forward(x, input).x;
  auto other = x.clone();
  other[1].narrow(0, 2, 4).mul_(20);
  const auto after = layer->forward(other, input).x;
  expect_near(before[0], after[0]);
  expect_near(before[1].narrow(0, 0, 2), after[1].narrow(0, 0, 2));
  // It is a statistic of the batch: valid tokens do count.
  other[1].narrow(0, 0, 2).mul_(20);
  EXPECT_FALSE(at::allclose(before[0], layer->forward(other, input).x[0]));
}

TEST(FeatureMapModule, ChRmsOfADeadChannelHasFiniteGradients) {
  auto options = small();
  options.ch_rms = true;
  auto map = make(options);
  {
    at::NoGradGuard no_grad;
    map->output_weight[1].zero_();
    map->output_bias[1].fill_(-1);
  }
  const Heads heads;
  std::get<0>(map->attend(heads.q, heads.k, heads.v)).sum().backward();
  for (const auto& parameter : map->parameters()) {
    EXPECT_TRUE(parameter.grad().isfinite().all().item<bool>());
  }
}

TEST(FeatureMapModule, ChRmsWithCausalRefused) {
  auto options = small();
  options.ch_rms = true;
  auto map = make(options);
  const Heads heads;
  nn::AttendOptions attend;
  attend.causal = true;
  expect_failure<c10::ValueError>(
      [&] { map->attend(heads.q, heads.k, heads.v, attend); },
      {"ch_rms", "causal = true"});
  attend.causal = false;
  attend.state = at::zeros({2, kHeads, 15, 4}, at::kDouble);
  expect_failure<c10::ValueError>(
      [&] { map->attend(heads.q, heads.k, heads.v, attend); },
      {"ch_rms", "state given"});
  at::NoGradGuard no_grad;
  expect_failure<c10::ValueError>(
      [&] {
        map->step(heads.q.select(2, 0), heads.k.select(2, 0),
                  heads.v.select(2, 0), *attend.state);
      },
      {"ch_rms"});
  const Layer layer({"universal", true}, {{"ch_rms", true}});
  expect_failure<c10::ValueError>(
      [&] {
        layer->forward(Random(2).normal({2, 5, kWidth}));
      },
      {"ch_rms"});
}

TEST(FeatureMapModule, DeadFeaturesShare) {
  auto options = small();
  options.L = 4;
  auto map = make(options);
  {
    at::NoGradGuard no_grad;
    map->output_weight.zero_();
    map->output_bias.copy_(at::tensor({1.0, -1.0, 1.0, -0.5}));
  }
  EXPECT_DOUBLE_EQ(map->dead_features(100), 0.5);
  {
    // psi(u) = 6 relu(u): the projection that is never positive is dead.
    at::NoGradGuard no_grad;
    map->hidden_weight.fill_(1);
    map->hidden_bias.zero_();
    map->output_weight.fill_(1);
    map->output_bias.zero_();
    map->projection_bias.copy_(at::tensor({-99., 99., 99., 99., 99.}));
  }
  EXPECT_DOUBLE_EQ(map->dead_features(100), 0.2);

  at::manual_seed(11);
  nn::FeatureMap fresh(64);
  auto generator = at::detail::createCPUGenerator(3);
  const double share = fresh->dead_features(1000, generator);
  EXPECT_GE(share, 0);
  EXPECT_LT(share, 0.9);
  EXPECT_EQ(fresh->dead_features(1000, at::detail::createCPUGenerator(3)),
            share);
}

TEST(FeatureMapModule, Float32ParametersServeBfloat16Heads) {
  auto options = small();
  options.gated = true;
  nn::FeatureMap map(nn::HeadShape{kHeadDim, kHeads}, options);
  randomize(*map, 1);
  const Heads heads;
  const auto low = [](const at::Tensor& x) {
    return x.to(at::kBFloat16).requires_grad_();
  };
  const auto q = low(heads.q), k = low(heads.k), v = low(heads.v);
  const auto [y, state] = map->attend(q, k, v);
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  EXPECT_EQ(state.scalar_type(), at::kFloat);

  auto exact = std::dynamic_pointer_cast<nn::FeatureMapImpl>(map->clone());
  exact->to(at::kDouble);
  const auto wide = [](const at::Tensor& x) {
    return x.detach().to(at::kDouble);
  };
  expect_near(y.to(at::kDouble),
              std::get<0>(exact->attend(wide(q), wide(k), wide(v))), 0.02);
  y.sum().backward();
  for (const auto& parameter : map->parameters()) {
    EXPECT_EQ(parameter.grad().scalar_type(), at::kFloat);
  }
  EXPECT_EQ(k.grad().scalar_type(), at::kBFloat16);
}

}  // namespace
}  // namespace luna::nn::testing
