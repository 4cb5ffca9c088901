#include <luna/nn/nested_causal_attention.h>

#include "nn/layers.h"
#include "nn/plain_formula.h"

namespace luna::nn::testing {
namespace {

nn::NestedCausalAttention make(
    const nn::NestedCausalAttentionOptions& options = {}) {
  nn::NestedCausalAttention layer(kWidth, kHeads, options);
  layer->to(at::kDouble);
  randomize(*layer, 1);
  return layer;
}

nn::LayerInput with_memory() {
  nn::LayerInput input;
  input.memory = Random(5).normal({2, kMemory, kWidth});
  return input;
}

TEST(NestedCausalAttentionModule, MatchesPlainFormulaInEveryShape) {
  for (const bool tied : {false, true}) {
    for (const std::string activation : {"softplus", "elu"}) {
      nn::NestedCausalAttentionOptions options;
      options.tied = tied;
      options.activation = activation;
      auto layer = make(options);
      const auto x = Random(2).normal({2, 6, kWidth});
      const auto input = with_memory();
      const auto output = layer->forward(x, input);
      expect_near(output.x, plain_nested_causal(Weights(*layer), tied,
                                                activation, x, *input.memory));
      EXPECT_TRUE(at::equal(*output.memory, *input.memory));
    }
  }
}

TEST(NestedCausalAttentionModule, LeftPaddingRefused) {
  auto layer = make();
  const auto x = Random(2).normal({2, 4, kWidth});
  auto input = with_memory();
  input.key_mask = at::tensor({1, 1, 1, 1, 0, 1, 1, 1}).view({2, 4}) > 0;
  expect_failure<c10::ValueError>([&] { layer->forward(x, input); },
                                  {"padding on the right only", "row 1"});
  input.key_mask = at::tensor({1, 0, 1, 1, 1, 1, 1, 1}).view({2, 4}) > 0;
  expect_failure<c10::ValueError>([&] { layer->forward(x, input); }, {"row 0"});
  input.key_mask = mask_of({4, 0}, 4);
  EXPECT_NO_THROW(layer->forward(x, input));
  input.key_mask = at::ones({2, 4}, at::kDouble);
  expect_failure<c10::TypeError>([&] { layer->forward(x, input); },
                                 {"key_mask of bool"});
}

TEST(NestedCausalAttentionModule, PaddedPieceGoesOnFromAState) {
  at::NoGradGuard no_grad;
  auto layer = make();
  const auto x = Random(2).normal({2, 6, kWidth});
  nn::LayerInput piece;
  piece.state = layer->forward(x.narrow(1, 0, 3), with_memory()).state;
  piece.key_mask = mask_of({3, 1}, 3);
  auto padded = layer->forward(x.narrow(1, 3, 3), piece).state;
  // Row 1 has seen four tokens.
  auto alone = layer->forward(x.narrow(1, 0, 4), with_memory()).state;
  const auto next = Random(3).normal({2, kWidth});
  expect_near(layer->step(next, padded)[1], layer->step(next, alone)[1]);
  EXPECT_TRUE(at::equal(padded.tensors[2], at::tensor({7, 5})));
}

TEST(NestedCausalAttentionModule, MemoryMaskHidesRowsInStreamsToo) {
  at::NoGradGuard no_grad;
  auto layer = make();
  const auto x = Random(2).normal({2, 5, kWidth});
  auto cut = with_memory();
  auto masked = cut;
  cut.memory = cut.memory->narrow(1, 0, 3);
  masked.memory_mask = mask_of({3, 3}, kMemory);
  const auto expected = layer->forward(x, cut).x;
  expect_near(layer->forward(x, masked).x, expected);
  auto state = layer->forward(x.narrow(1, 0, 2), masked).state;
  for (int64_t t = 2; t < 5; ++t) {
    expect_near(layer->step(x.select(1, t), state), expected.select(1, t));
  }
}

// Beam search: every tensor of the state is reordered by dimension 0.
TEST(NestedCausalAttentionModule, StateIsBatchFirst) {
  at::NoGradGuard no_grad;
  auto layer = make();
  const auto x = Random(2).normal({2, 5, kWidth});
  const auto next = Random(3).normal({3, kWidth});
  const auto order = at::tensor({1, 0, 1});
  auto beams = layer->forward(x, with_memory()).state;
  for (auto& tensor : beams.tensors) tensor = tensor.index_select(0, order);
  const auto y = layer->step(next, beams);

  auto input = with_memory();
  input.memory = input.memory->index_select(0, order);
  auto state = layer->forward(x.index_select(0, order), input).state;
  expect_near(y, layer->step(next, state));
}

TEST(NestedCausalAttentionModule, DropoutActsInTrainingOnly) {
  nn::NestedCausalAttentionOptions options;
  options.dropout = 0.5;
  auto layer = make(options);
  const auto x = Random(2).normal({2, 6, kWidth});
  const auto input = with_memory();
  at::manual_seed(7);
  const auto first = layer->forward(x, input).x;
  EXPECT_FALSE(at::equal(layer->forward(x, input).x, first));
  at::manual_seed(7);
  EXPECT_TRUE(at::equal(layer->forward(x, input).x, first));
  layer->eval();
  expect_near(layer->forward(x, input).x, make()->forward(x, input).x);
}

TEST(NestedCausalAttentionModule, RefusesWhatItCannotUse) {
  auto layer = make();
  const auto x = at::zeros({2, 6, kWidth}, at::kDouble);
  expect_failure<c10::ValueError>([&] { layer->forward(x); },
                                  {"either a memory", "neither"});
  auto input = with_memory();
  input.state = layer->forward(x, input).state;
  expect_failure<c10::ValueError>([&] { layer->forward(x, input); },
                                  {"either a memory", "both"});
  input = with_memory();
  input.context = x;
  expect_failure<c10::ValueError>([&] { layer->forward(x, input); },
                                  {"no context"});
}

}  // namespace
}  // namespace luna::nn::testing
