#include <luna/nn/nested_attention.h>

#include <cmath>

#include "nn/layers.h"
#include "nn/plain_formula.h"

namespace luna::nn::testing {
namespace {

nn::NestedAttention make(const nn::NestedAttentionOptions& options = {}) {
  nn::NestedAttention layer(kWidth, kHeads, options);
  layer->to(at::kDouble);
  randomize(*layer, 1);
  return layer;
}

nn::LayerInput with_memory(int64_t batch = 2) {
  nn::LayerInput input;
  input.memory = Random(5).normal({batch, kMemory, kWidth});
  return input;
}

TEST(NestedAttentionModule, MatchesPlainFormulaInEveryShape) {
  for (const bool tied : {false, true}) {
    for (const int64_t pack_heads : {0, 2, 6}) {
      nn::NestedAttentionOptions options;
      options.tied = tied;
      options.pack_heads = pack_heads;
      auto layer = make(options);
      const auto x = Random(2).normal({2, 6, kWidth});
      auto input = with_memory();
      input.context = Random(3).normal({2, 9, kWidth});
      input.key_mask = mask_of({9, 2}, 9);
      const auto output = layer->forward(x, input);
      const auto [y, packed] = plain_nested(
          Weights(*layer), tied, pack_heads == 0 ? kHeads : pack_heads, x,
          *input.context, *input.memory, *input.key_mask,
          mask_of({kMemory, 2}, kMemory));
      expect_near(output.x, y);
      expect_near(*output.memory, packed);
    }
  }
}

TEST(NestedAttentionModule, FloatWeightsWeighKeys) {
  auto layer = make();
  const auto x = Random(2).normal({1, 6, kWidth});
  auto input = with_memory(1);
  // A key of weight 2 is two equal keys.
  input.key_mask =
      at::tensor({1., 2., 1., 1., 1., 1.}, at::kDouble).unsqueeze(0);
  const auto weighted = layer->forward(x, input);
  input.key_mask.reset();
  input.context = at::cat({x, x.narrow(1, 1, 1)}, 1);
  const auto doubled = layer->forward(x, input);
  expect_near(weighted.x, doubled.x);
  expect_near(*weighted.memory, *doubled.memory);
}

TEST(NestedAttentionModule, DynamicProjectionUsesAsManyRowsAsThereAreTokens) {
  auto dynamic = make();
  const auto x = Random(2).normal({2, 2, kWidth});
  const auto whole = with_memory();
  auto cut = whole;
  cut.memory = whole.memory->narrow(1, 0, 2);
  const auto expected = dynamic->forward(x, cut);
  const auto actual = dynamic->forward(x, whole);
  expect_near(actual.x, expected.x);
  expect_near(actual.memory->narrow(1, 0, 2), *expected.memory);
  EXPECT_EQ(actual.memory->size(1), kMemory);

  nn::NestedAttentionOptions options;
  options.dynamic_projection = false;
  auto fixed = make(options);
  const auto [y, packed] =
      plain_nested(Weights(*fixed), true, kHeads, x, x, *whole.memory,
                   mask_of({2, 2}, 2), mask_of({kMemory, kMemory}, kMemory));
  expect_near(fixed->forward(x, whole).x, y);
  EXPECT_FALSE(at::allclose(y, expected.x));
}

TEST(NestedAttentionModule, DynamicMaskCountsPackedAndMaskedTokens) {
  const auto keys = at::zeros({1, 7, kWidth});
  const auto starts = at::tensor({0, 3, 7}, at::kInt);
  EXPECT_TRUE(at::equal(*nn::dynamic_memory_mask(keys, 4, std::nullopt, starts),
                        mask_of({3, 4}, 4)));
  const auto mask = at::tensor({1., 0., 1., 1., 0., 0., 0.}).unsqueeze(0);
  EXPECT_TRUE(at::equal(*nn::dynamic_memory_mask(keys, 4, mask, starts),
                        mask_of({2, 1}, 4)));
  EXPECT_FALSE(
      nn::dynamic_memory_mask(keys, 7, std::nullopt, std::nullopt).has_value());
}

TEST(NestedAttentionModule, MemoryMaskHidesRows) {
  auto layer = make();
  const auto x = Random(2).normal({2, 6, kWidth});
  auto input = with_memory();
  input.memory_mask = mask_of({1, 3}, kMemory);
  const auto [y, packed] =
      plain_nested(Weights(*layer), true, kHeads, x, x, *input.memory,
                   mask_of({6, 6}, 6), *input.memory_mask);
  expect_near(layer->forward(x, input).x, y);
}

TEST(NestedAttentionModule, StartsAsThePaperSays) {
  at::manual_seed(11);
  const int64_t D = 256;
  nn::NestedAttention layer(D, 8);
  for (const auto& child : layer->named_children()) {
    const auto parameters = child.value()->named_parameters();
    const auto weight = parameters["weight"];
    const double gain = child.key() == "out_proj" ? 1 : std::sqrt(0.5);
    const double bound = gain * std::sqrt(6.0 / (2 * D));
    EXPECT_LE(weight.abs().max().item<double>(), bound);
    EXPECT_NEAR(weight.std().item<double>(), bound / std::sqrt(3.0),
                bound * 0.02)
        << child.key();
    EXPECT_EQ(parameters["bias"].abs().max().item<double>(), 0);
  }
}

TEST(NestedAttentionModule, DropoutActsInTrainingOnly) {
  nn::NestedAttentionOptions options;
  options.dropout = 0.5;
  auto layer = make(options);
  const auto x = Random(2).normal({2, 6, kWidth});
  const auto input = with_memory();
  at::manual_seed(7);
  const auto first = layer->forward(x, input);
  const auto second = layer->forward(x, input);
  EXPECT_FALSE(at::equal(first.x, second.x));
  EXPECT_FALSE(at::equal(*first.memory, *second.memory));
  at::manual_seed(7);
  EXPECT_TRUE(at::equal(layer->forward(x, input).x, first.x));
  layer->eval();
  expect_near(layer->forward(x, input).x, make()->forward(x, input).x);
}

TEST(NestedAttentionModule, RefusesWhatItCannotUse) {
  auto layer = make();
  const auto x = at::zeros({2, 6, kWidth}, at::kDouble);
  expect_failure<c10::ValueError>([&] { layer->forward(x); },
                                  {"NestedAttention", "memory", "none"});
  nn::LayerInput input;
  input.memory = at::zeros({3, kMemory, kWidth}, at::kDouble);
  expect_failure<c10::ValueError>([&] { layer->forward(x, input); },
                                  {"memory [2, length, 12]", "[3, 4, 12]"});
  nn::NestedAttentionOptions options;
  options.pack_heads = 5;
  expect_failure<c10::ValueError>(
      [&] { nn::NestedAttention(kWidth, kHeads, options); },
      {"multiple", "5 heads"});
}

}  // namespace
}  // namespace luna::nn::testing
