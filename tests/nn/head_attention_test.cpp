// Head-level mechanisms: what is theirs alone. The rest is in
// attention_properties_test.cpp.

#include <ATen/autocast_mode.h>
#include <luna/nn/linear_attention.h>
#include <luna/nn/rff_attention.h>
#include <luna/nn/softmax_attention.h>
#include <luna/nn/universal_attention.h>

#include <cmath>
#include <utility>
#include <vector>

#include "nn/layers.h"
#include "nn/plain_formula.h"
#include "support/errors.h"

namespace luna::nn::testing {
namespace {

constexpr int64_t kHeadDim = 4;

class HeadLevel : public ::testing::TestWithParam<Form> {
 protected:
  const at::Tensor q = Random(2).normal({2, kHeads, 6, kHeadDim});
  const at::Tensor k = Random(3).normal({2, kHeads, 6, kHeadDim});
  const at::Tensor v = Random(4).normal({2, kHeads, 6, 5});

  std::shared_ptr<nn::HeadAttention> make() {
    at::manual_seed(11);
    auto heads = nn::make_head_attention(GetParam().name, {kHeadDim, kHeads});
    nn::as_module(heads)->to(at::kDouble);
    return heads;
  }
};

TEST_P(HeadLevel, ValuesMayHaveAnotherWidth) {
  const auto [y, state] = make()->attend(q, k, v);
  EXPECT_EQ(y.sizes(), at::IntArrayRef({2, kHeads, 6, 5}));
}

TEST_P(HeadLevel, WeightTwoIsTwoEqualKeys) {
  const auto heads = make();
  nn::AttendOptions weighted;
  weighted.key_weight =
      at::tensor({1., 2., 1., 0., 1., 1.}, at::kDouble).expand({2, kHeads, 6});
  const auto order = at::tensor({0, 1, 1, 2, 4, 5});
  const auto [expected, s0] =
      heads->attend(q, k.index_select(2, order), v.index_select(2, order));
  const auto [actual, s1] = heads->attend(q, k, v, weighted);
  expect_near(actual, expected);
}

TEST_P(HeadLevel, WeightsHaveFiniteGradients) {
  const auto weight = at::tensor({1., 2., 1., 0., 1., 1.}, at::kDouble)
                          .expand({2, 6})
                          .clone()
                          .requires_grad_();
  nn::AttendOptions options;
  options.key_weight = weight;
  const auto [y, state] = make()->attend(q, k, v, options);
  (y * Random(5).normal(y.sizes())).sum().backward();
  EXPECT_TRUE(weight.grad().isfinite().all().item<bool>());
  EXPECT_GT(weight.grad().select(1, 1).abs().min().item<double>(), 0);
}

TEST_P(HeadLevel, CausalUnderAMaskSeesNeither) {
  nn::AttendOptions options;
  options.causal = true;
  options.key_weight = mask_of({6, 2}, 6);
  const auto heads = make();
  const auto [y, state] = heads->attend(q, k, v, options);
  auto other = v.clone();
  other[1].narrow(1, 2, 4).add_(9);
  other[0].narrow(1, 4, 2).add_(9);
  const auto [z, end] = heads->attend(q, k, other, options);
  EXPECT_TRUE(at::equal(y[1], z[1]));
  EXPECT_TRUE(at::equal(y[0].narrow(1, 0, 4), z[0].narrow(1, 0, 4)));
  EXPECT_FALSE(at::equal(y[0].narrow(1, 4, 2), z[0].narrow(1, 4, 2)));
}

INSTANTIATE_TEST_SUITE_P(Registry, HeadLevel,
                         ::testing::ValuesIn(forms(false,
                                                   [](const auto& t) {
                                                     return t.head_level;
                                                   })),
                         name_of);

TEST(SoftmaxAttentionModule, DropoutActsInTrainingOnly) {
  nn::SoftmaxAttentionOptions options;
  options.dropout = 0.5;
  nn::SoftmaxAttention heads(nn::HeadShape{4, 2}, options);
  const auto x = Random(2).normal({1, 2, 8, 4});
  const auto attend = [&] { return std::get<0>(heads->attend(x, x, x)); };
  EXPECT_FALSE(at::equal(attend(), attend()));
  heads->eval();
  EXPECT_TRUE(at::equal(attend(), at::scaled_dot_product_attention(x, x, x)));
}

TEST(SoftmaxAttentionModule, RefusesAState) {
  nn::SoftmaxAttention heads(nn::HeadShape{4, 2});
  const auto x = at::zeros({1, 2, 8, 4});
  nn::AttendOptions options;
  options.state = x;
  expect_failure<c10::ValueError>([&] { heads->attend(x, x, x, options); },
                                  {"softmax", "no state"});
  expect_failure<c10::ValueError>([&] { heads->step(x[0], x[0], x[0], x); },
                                  {"streams"});
}

TEST(RffAttentionModule, FeaturesApproachTheGaussianKernel) {
  at::manual_seed(1);
  nn::RffAttentionOptions options;
  options.features = 1 << 15;
  nn::RffAttention heads(nn::HeadShape{16}, options);
  heads->to(at::kDouble);
  const auto q = Random(2).normal({5, 16}), k = Random(3).normal({6, 16});
  const auto distance = (q.unsqueeze(1) - k.unsqueeze(0)).square().sum(-1);
  // x' = x / 16^(1/4) = x / 2
  expect_near(at::matmul(heads(q), heads(k).t()), (-distance / 8).exp(), 0.03);
  EXPECT_TRUE(heads->parameters().empty());
}

TEST(UniversalAttentionModule, HeadLevelCallIsTheLayersOwn) {
  at::manual_seed(11);
  nn::UniversalAttention layer(kWidth, kHeads);
  layer->to(at::kDouble);
  const auto x = Random(2).normal({2, 6, kWidth});
  const Weights weights(*layer);
  const auto heads = nn::universal_attention(
      weights.heads("q_proj", x, kHeads), weights.heads("k_proj", x, kHeads),
      weights.heads("v_proj", x, kHeads), layer.feature_map());
  expect_near(layer->forward(x).x,
              weights.linear("out_proj", heads.transpose(1, 2).flatten(2)));
  const nn::MultiHeadAttention softmax(
      nn::MultiHeadAttentionOptions{{kWidth, kHeads}, "softmax", {}});
  expect_failure<c10::ValueError>(
      [&] { nn::UniversalAttention other(softmax.ptr()); },
      {"universal", "softmax"});
}

TEST(UniversalAttentionModule, RunsUnderAutocast) {
  at::manual_seed(11);
  nn::FeatureMapOptions gated;
  gated.gated = true;
  nn::UniversalAttention layer(kWidth, kHeads, gated);
  const auto x = Random(2).normal({2, 6, kWidth}).to(at::kFloat);
  const auto expected = layer->forward(x).x;
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  const auto y = layer->forward(x).x;
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  expect_near(y.to(at::kFloat), expected, 0.05);
  y.sum().backward();
  for (const auto& parameter : layer->parameters()) {
    EXPECT_EQ(parameter.grad().scalar_type(), at::kFloat);
  }
}

/// Of RFA's recurrence, token by token, what is divided and what it is divided
/// by, [2,H,n,dv + 1], and the sums at the end.
std::pair<at::Tensor, at::Tensor> rfa_sums(const RffAttention& rff,
                                           const at::Tensor& q,
                                           const at::Tensor& k,
                                           const at::Tensor& v) {
  auto sums = at::zeros({2, kHeads, 8, v.size(3) + 1}, at::kDouble);
  const auto one = at::ones({2, kHeads, 1}, at::kDouble);
  std::vector<at::Tensor> rows;
  for (int64_t t = 0; t < q.size(2); ++t) {
    const auto key = k.select(2, t);
    const auto row = at::cat({v.select(2, t), one}, -1).unsqueeze(-2);
    const auto added = rff->forward(key).unsqueeze(-1) * row;
    if (rff->gate_weight.defined()) {
      const auto gate = ((key * rff->gate_weight).sum(-1) + rff->gate_bias)
                            .sigmoid()
                            .unsqueeze(-1)
                            .unsqueeze(-1);
      sums = gate * sums + (1 - gate) * added;
    } else {
      sums = sums + added;
    }
    rows.push_back((rff->forward(q.select(2, t)).unsqueeze(-1) * sums).sum(2));
  }
  return {at::stack(rows, 2), sums};
}

TEST(RffAttentionModule, SumsOfWeightsCountAsNoLessThanEps) {
  constexpr double kEps = 0.3;
  for (const bool gate : {false, true}) {
    at::manual_seed(5);
    RffAttention rff(
        HeadShape{kHeadDim, kHeads},
        RffAttentionOptions{
            .features = 8, .unit = true, .gate = gate, .eps = kEps});
    const at::NoGradGuard no_grad;
    rff->to(at::kDouble);
    const int64_t n = 20;
    const auto q = Random(2).normal({2, kHeads, n, kHeadDim});
    const auto k = Random(3).normal({2, kHeads, n, kHeadDim});
    const auto v = Random(4).normal({2, kHeads, n, 5});
    const auto [rows, sums] = rfa_sums(rff, q, k, v);
    const auto weight = rows.narrow(-1, 5, 1);
    const auto guarded = weight.abs().lt(kEps).sum().item<int64_t>();
    EXPECT_GT(guarded, 0);
    EXPECT_LT(guarded, 2 * kHeads * n);
    const auto expected =
        rows.narrow(-1, 0, 5) / weight.abs().clamp_min(kEps).copysign(weight);
    AttendOptions causal;
    causal.causal = true;
    expect_near(std::get<0>(rff->attend(q, k, v, causal)), expected);
    auto state = at::zeros_like(sums);
    for (int64_t t = 0; t < n; ++t) {
      expect_near(
          rff->step(q.select(2, t), k.select(2, t), v.select(2, t), state),
          expected.select(2, t));
    }
  }
}

TEST(RffGate, IsTheRecurrenceOfRfa) {
  at::manual_seed(3);
  RffAttention rff(
      HeadShape{kHeadDim, kHeads},
      RffAttentionOptions{.features = 8, .unit = true, .gate = true});
  const at::NoGradGuard no_grad;
  rff->gate_weight.normal_();
  rff->to(at::kDouble);
  const int64_t n = 150;  // three chunks
  const auto q = Random(2).normal({2, kHeads, n, kHeadDim});
  const auto k = Random(3).normal({2, kHeads, n, kHeadDim});
  const auto v = Random(4).normal({2, kHeads, n, 5});
  const auto [rows, sums] = rfa_sums(rff, q, k, v);
  AttendOptions causal;
  causal.causal = true;
  const auto [y, state] = rff->attend(q, k, v, causal);
  expect_near(y, rows.narrow(-1, 0, 5) / rows.narrow(-1, 5, 1));
  expect_near(state, sums);
  // In two parts, the second from the first one's state.
  const auto [y1, half] = rff->attend(q.narrow(2, 0, 70), k.narrow(2, 0, 70),
                                      v.narrow(2, 0, 70), causal);
  AttendOptions rest = causal;
  rest.state = half;
  const auto [y2, end] = rff->attend(q.narrow(2, 70, 80), k.narrow(2, 70, 80),
                                     v.narrow(2, 70, 80), rest);
  expect_near(at::cat({y1, y2}, 2), y);
  expect_near(end, sums);
  // Padding behind the sentence changes neither outputs nor sums.
  AttendOptions masked = causal;
  masked.key_weight = at::arange(n).lt(70).expand({2, n});
  const auto [y3, kept] = rff->attend(q, k, v, masked);
  expect_near(y3.narrow(2, 0, 70), y1);
  expect_near(kept, half);
  luna::testing::expect_error<c10::ValueError>(
      [&] { rff->attend(q, k, v, {}); }, {"gate", "causal"});
}

}  // namespace
}  // namespace luna::nn::testing
