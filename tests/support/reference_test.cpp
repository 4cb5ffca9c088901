// The references on numbers computed by hand.

#include "support/reference.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <vector>

namespace luna::testing {
namespace {

using at::Tensor;

const double kLn3 = std::log(3.0);

Tensor numbers(std::vector<double> values, at::IntArrayRef sizes) {
  return at::tensor(values, at::kDouble).view(sizes).clone();
}

/// One batch, one head: [1,1,length,width].
Tensor sequence(std::vector<double> values, int64_t width = 1) {
  return numbers(std::move(values), {1, 1, -1, width});
}

void expect_numbers(const Tensor& actual, std::vector<double> expected) {
  ASSERT_EQ(actual.numel(), static_cast<int64_t>(expected.size()));
  const Tensor flat = actual.reshape({-1});
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(flat[i].item<double>(), expected[i], 1e-12) << "at " << i;
  }
}

TEST(Reference, PsiIsTheNetwork) {
  const ops::FeatureMapParameters p{{},
                                    {},
                                    numbers({1, -2}, {1, 2}),
                                    numbers({0, 1}, {1, 2}),
                                    numbers({3, 0.5}, {1, 2}),
                                    numbers({-1}, {1})};
  //   2 -> 3*2 + 0 - 1, -1 -> 0 + .5*(2+1) - 1, 1/4 -> 3/4 + .5*.5 - 1
  expect_numbers(reference::psi(numbers({2, -1, 0.25}, {3}), p), {5, 0.5, 0});
}

TEST(Reference, FeaturesAreProjectionMajor) {
  // Arguments u = (3, 2*3 - 1) = (3, 5); channels relu(u) and 1 - relu(u).
  const ops::FeatureMapParameters p{
      numbers({1, 2}, {2, 1}), numbers({0, -1}, {2}),    numbers({1}, {1, 1}),
      numbers({0}, {1, 1}),    numbers({1, -1}, {2, 1}), numbers({0, 1}, {2})};
  const Tensor x = numbers({3}, {1});
  const double r = std::sqrt(0.5);
  expect_numbers(reference::feature_map(x, p, false),
                 {3 * r, -2 * r, 5 * r, -4 * r});
  expect_numbers(reference::feature_map(x, p, true), {3 * r, 0, 5 * r, 0});
}

TEST(Reference, ProjectionPerHead) {
  // Head 0 doubles, head 1 negates and adds 5; psi is relu.
  const ops::FeatureMapParameters p{
      numbers({2, -1}, {2, 1, 1}), numbers({0, 5}, {2, 1}),
      numbers({1}, {1, 1}),        numbers({0}, {1, 1}),
      numbers({1}, {1, 1}),        numbers({0}, {1})};
  expect_numbers(
      reference::feature_map(numbers({1, 2, 3, 4}, {1, 2, 2, 1}), p, true),
      {2, 4, 2, 1});
}

TEST(Reference, LinearAttention) {
  const Tensor q = sequence({2, 2}), k = sequence({1, 3}),
               v = sequence({10, 20});
  const Tensor w = numbers({1, 0.5}, {1, 2});
  // S = 1*10 + .5*3*20 = 40, z = 1 + 1.5 = 2.5
  auto [output, state] =
      reference::linear_attention(q, k, v, {.key_weight = w});
  expect_numbers(output, {16, 16});
  expect_numbers(state, {40, 2.5});
  std::tie(output, state) =
      reference::linear_attention(q, k, v, {.key_weight = w, .causal = true});
  expect_numbers(output, {10, 16});
  expect_numbers(state, {40, 2.5});
  std::tie(output, state) = reference::linear_attention(
      q, k, v, {.key_weight = w, .causal = true, .normalize = false});
  expect_numbers(output, {20, 80});
  // From S_0 = 10, z_0 = 1.5: (10+10)/(1.5+1) = 8, then 50/4 = 12.5
  const Tensor start = numbers({10, 1.5}, {1, 1, 1, 2});
  std::tie(output, state) = reference::linear_attention(
      q, k, v, {.key_weight = w, .causal = true, .state = start});
  expect_numbers(output, {8, 12.5});
  expect_numbers(state, {50, 4});
}

TEST(Reference, GuardIsAConstantToTheGradient) {
  // den = 1 - 1 = 0 counts as +eps: (5 - 2) / .5
  auto [output, state] = reference::linear_attention(
      sequence({1}), sequence({1, -1}), sequence({5, 2}), {.eps = 0.5});
  expect_numbers(output, {6});
  // den = -.1 counts as -eps: -.5 / -.5; d/dq = k v / -eps = 1.
  const Tensor q = sequence({1}).requires_grad_();
  std::tie(output, state) = reference::linear_attention(
      q, sequence({-0.1}), sequence({5}), {.eps = 0.5});
  expect_numbers(output, {1});
  expect_numbers(torch::autograd::grad({output}, {q})[0], {1});
}

TEST(Reference, MaskedRowsAreZeroWithoutGradients) {
  const Tensor w = numbers({0, 2}, {1, 2}).requires_grad_();
  const Tensor q = sequence({1, 1}), k = sequence({1, 1}), v = sequence({3, 7});
  auto [output, state] =
      reference::linear_attention(q, k, v, {.key_weight = w, .causal = true});
  expect_numbers(output, {0, 7});
  // Row 1 passes nothing. Row 2 is (3 w_1 + 7 w_2) / (w_1 + w_2) at (0, 2):
  // d/dw_1 = 3/2 - 14/4 = -2, d/dw_2 = 7/2 - 14/4 = 0.
  expect_numbers(torch::autograd::grad({output.sum()}, {w})[0], {-2, 0});
}

TEST(Reference, PackedSequencesAreSeparate) {
  const Tensor cu = at::tensor({0, 1, 1, 3}, at::kInt);
  const Tensor ones = at::ones({1, 1, 3, 1}, at::kDouble);
  auto [output, state] =
      reference::linear_attention(ones, ones, sequence({4, 5, 7}),
                                  {.cu_seqlens_q = cu, .cu_seqlens_k = cu});
  expect_numbers(output, {4, 6, 6});
  expect_numbers(state, {4, 1, 0, 0, 12, 2});
}

TEST(Reference, WeightedSoftmax) {
  const Tensor scores = numbers({0, kLn3}, {2});
  auto p = [&](double first, double second) {
    return reference::weighted_softmax(scores, numbers({first, second}, {2}));
  };
  expect_numbers(p(1, 1), {0.25, 0.75});
  expect_numbers(p(3, 1), {0.5, 0.5});
  expect_numbers(p(0, 1), {0, 1});
  expect_numbers(p(0, 0), {0, 0});
  // p_1 = w_1 / (w_1 + 3 w_2): at (0, 1) its derivatives are (1/3, 0).
  const Tensor w = numbers({0, 1}, {2}).requires_grad_();
  const Tensor first = reference::weighted_softmax(scores, w)[0];
  expect_numbers(torch::autograd::grad({first}, {w})[0], {1.0 / 3, 0});
}

TEST(Reference, PackAndUnpack) {
  // (1/4) 4 + (3/4) 8 = 7; with four equal widths the default scale is 1/2.
  const Tensor v = sequence({4, 8});
  expect_numbers(reference::pack_attention(sequence({1}), sequence({0, kLn3}),
                                           v, {.scale = 1.0}),
                 {7});
  const double c = kLn3 / 2;
  const Tensor q = sequence({1, 1, 1, 1}, 4);
  const Tensor k = sequence({0, 0, 0, 0, c, c, c, c}, 4);
  expect_numbers(reference::pack_attention(q, k, v), {7});
  expect_numbers(reference::unpack_attention(q, k, v), {7});
  // One query shared by two packed sequences, the first of them empty.
  expect_numbers(
      reference::pack_attention(
          q, k, v, {.cu_seqlens_k = at::tensor({0, 0, 2}, at::kLong)}),
      {0, 7});
  // Three packed queries; the first sequence reads one memory, the rest the
  // other: p = (1/4, 3/4) of (4, 8), then of (0, 4).
  expect_numbers(
      reference::unpack_attention(
          q.expand({1, 1, 3, 4}), at::cat({k, k}), at::cat({v, v - 4}),
          {.cu_seqlens_q = at::tensor({0, 1, 3}, at::kLong)}),
      {7, 3, 3});
}

TEST(Reference, NestedCausalAttention) {
  // log2(1 + 2^0) = 1 and log2(1 + 2^(log2 3)) = 2: a_1 = (1,2), a_2 = (1,1).
  const Tensor packed_query = sequence({0, std::log2(3.0)});
  const Tensor pack_key = sequence({1, 0});
  const Tensor q = sequence({1, 2}), k = sequence({kLn3, -kLn3}),
               v = sequence({4, 0});
  // t = 1: u = (ln 3, 2 ln 3), w = (3, 9)/12, y = (1/4) 4 + (3/4) 8 = 7.
  // t = 2: u = (1/2) 2 (0, ln 3), w = (1/4, 3/4), y = (1/2) 7.
  ops::NestedCausalAttentionOptions options{.scale = 1.0};
  auto [output, key_state, value_state, count] =
      reference::nested_causal_attention(q, pack_key, k, v, packed_query,
                                         options);
  expect_numbers(output, {7, 3.5});
  expect_numbers(key_state, {0, kLn3});
  expect_numbers(value_state, {4, 8});
  expect_numbers(count, {2});
  // The second token alone, from the state after the first.
  options.key_state = numbers({kLn3, 2 * kLn3}, {1, 1, 1, 2});
  options.value_state = numbers({4, 8}, {1, 1, 2, 1});
  options.count = at::ones({1}, at::kLong);
  std::tie(output, key_state, value_state, count) =
      reference::nested_causal_attention(
          q.narrow(2, 1, 1), pack_key.narrow(2, 1, 1), k.narrow(2, 1, 1),
          v.narrow(2, 1, 1), packed_query, options);
  expect_numbers(output, {3.5});
  expect_numbers(key_state, {0, kLn3});
  expect_numbers(count, {2});
  // Only the first slot: w = (1, 0), y = 4 and (1/2) 4.
  const Tensor first_only = at::tensor({1, 0}, at::kInt).to(at::kBool);
  std::tie(output, key_state, value_state, count) =
      reference::nested_causal_attention(
          q, pack_key, k, v, packed_query,
          {.packed_mask = first_only.unsqueeze(0), .scale = 1.0});
  expect_numbers(output, {4, 2});
}

TEST(Reference, EluPlusOne) {
  // elu(1) + 1 = 2, elu(-ln 2) + 1 = 1/2; value 1 makes value_state = a.
  const Tensor one = sequence({1});
  auto result = reference::nested_causal_attention(
      one, one, one, one, sequence({1, -std::log(2.0)}),
      {.activation = "elu", .scale = 1.0});
  expect_numbers(std::get<2>(result), {2, 0.5});
}

}  // namespace
}  // namespace luna::testing
