// What every registered mechanism promises, checked on each by enumerating the
// registry: a new one is tested by its line in the table.

#include <torch/serialize.h>

#include <set>
#include <sstream>

#include "nn/layers.h"
#include "nn/plain_formula.h"

namespace luna::nn::testing {
namespace {

class EveryForm : public ::testing::TestWithParam<Form> {
 protected:
  void SetUp() override { at::manual_seed(11); }
};
class EncoderForm : public EveryForm {};
class CausalForm : public EveryForm {};
class CrossForm : public EveryForm {};
class StreamingForm : public EveryForm {};

TEST_P(EveryForm, MatchesPlainFormula) {
  const Layer layer(GetParam());
  randomize(*layer.module, 1);
  const auto x = Random(2).normal({2, 7, kWidth});
  const auto input = input_for(layer);
  expect_near(layer->forward(x, input).x,
              plain_layer(GetParam(), *layer.module, x, input));
}

TEST_P(EveryForm, MatchesPlainFormulaUnderAMask) {
  const Layer layer(GetParam());
  randomize(*layer.module, 1);
  const auto x = Random(2).normal({2, 7, kWidth});
  auto input = input_for(layer);
  input.key_mask = mask_of({7, 3}, 7);  // 3: shorter than the memory
  const auto actual = layer->forward(x, input).x;
  const auto expected = plain_layer(GetParam(), *layer.module, x, input);
  expect_near(actual[0], expected[0]);
  expect_near(actual[1].narrow(0, 0, 3), expected[1].narrow(0, 0, 3));
}

TEST_P(EveryForm, PaddingChangesNothing) {
  const Layer layer(GetParam());
  randomize(*layer.module, 1);
  const auto x = Random(3).normal({2, 7, kWidth});
  auto input = input_for(layer);
  input.key_mask = mask_of({7, 3}, 7);
  const auto before = layer->forward(x, input).x;
  auto other = x.clone();
  other[1].narrow(0, 3, 4).copy_(Random(4).normal({4, kWidth}, 50));
  const auto after = layer->forward(other, input).x;
  EXPECT_TRUE(at::equal(before[0], after[0]));
  EXPECT_TRUE(at::equal(before[1].narrow(0, 0, 3), after[1].narrow(0, 0, 3)));

  const auto alone =
      layer->forward(x.narrow(0, 1, 1).narrow(1, 0, 3), input_for(layer)).x;
  expect_near(before[1].narrow(0, 0, 3), alone[0]);
}

TEST_P(EveryForm, PackedEqualsSeparate) {
  const Layer layer(GetParam());
  randomize(*layer.module, 1);
  const auto x = Random(3).normal({1, 9, kWidth});
  auto input = input_for(layer);
  input.cu_seqlens_q = at::tensor({0, 3, 3, 9}, at::kInt);
  const auto packed = layer->forward(x, input).x;
  const auto plain = input_for(layer);
  expect_near(packed.narrow(1, 0, 3),
              layer->forward(x.narrow(1, 0, 3), plain).x);
  expect_near(packed.narrow(1, 3, 6),
              layer->forward(x.narrow(1, 3, 6), plain).x);
}

TEST_P(EveryForm, GradientsFlowToEveryParameter) {
  const Layer layer(GetParam());
  randomize(*layer.module, 1);
  const auto x = Random(2).normal({2, 7, kWidth}).requires_grad_();
  auto input = input_for(layer);
  if (input.memory) input.memory->requires_grad_();
  const auto y = layer->forward(x, input).x;
  (y * Random(6).normal(y.sizes())).sum().backward();

  // A constant added to all keys changes no softmax.
  const std::set<std::string> free = GetParam().name == "softmax"
                                         ? std::set<std::string>{"k_proj.bias"}
                                         : std::set<std::string>{};
  for (const auto& parameter : layer.module->named_parameters()) {
    const auto& gradient = parameter.value().grad();
    ASSERT_TRUE(gradient.defined()) << parameter.key();
    EXPECT_TRUE(gradient.isfinite().all().item<bool>()) << parameter.key();
    if (free.count(parameter.key()) > 0) continue;
    EXPECT_GT(gradient.norm().item<double>(), 1e-8) << parameter.key();
  }
  EXPECT_GT(x.grad().norm().item<double>(), 1e-8);
  if (input.memory) {
    EXPECT_GT(input.memory->grad().norm().item<double>(), 1e-8);
  }
}

TEST_P(EveryForm, SaveLoadRoundTrip) {
  const Layer saved(GetParam());
  randomize(*saved.module, 1);
  std::stringstream file;
  torch::save(saved.module, file);
  Layer loaded(GetParam());
  const auto x = Random(2).normal({2, 7, kWidth});
  const auto input = input_for(saved);
  const auto expected = saved->forward(x, input).x;
  EXPECT_FALSE(at::equal(loaded->forward(x, input).x, expected));
  torch::load(loaded.module, file);
  EXPECT_TRUE(at::equal(loaded->forward(x, input).x, expected));
}

TEST_P(EveryForm, CloneIsDeep) {
  const Layer layer(GetParam());
  randomize(*layer.module, 1);
  const auto x = Random(2).normal({2, 7, kWidth});
  const auto input = input_for(layer);
  const auto expected = layer->forward(x, input).x;
  const auto copy = layer.module->clone();
  const auto forward = [&] {
    return std::dynamic_pointer_cast<nn::AttentionLayer>(copy)
        ->forward(x, input)
        .x;
  };
  EXPECT_TRUE(at::equal(forward(), expected));
  randomize(*copy, 9);
  EXPECT_FALSE(at::equal(forward(), expected));
  EXPECT_TRUE(at::equal(layer->forward(x, input).x, expected));
}

TEST_P(EveryForm, RefusesWrongShapes) {
  const Layer layer(GetParam());
  const auto x = at::zeros({2, 7, kWidth}, at::kDouble);
  auto input = input_for(layer);
  expect_failure<c10::ValueError>(
      [&] {
        layer->forward(at::zeros({2, 7, kWidth + 1}), input);
      },
      {"expected x [batch, length, 12]", "[2, 7, 13]"});
  input.key_mask = at::ones({2, 6}, at::kBool);
  expect_failure<c10::ValueError>([&] { layer->forward(x, input); },
                                  {"expected key_mask [2, 7]", "[2, 6]"});
  input.key_mask = at::ones({2, 7}, at::kLong);
  expect_failure<c10::TypeError>([&] { layer->forward(x, input); },
                                 {"key_mask", "bool", "Long"});
}

TEST_P(EncoderForm, RowsWithoutKeysGiveZero) {
  const Layer layer(GetParam());
  randomize(*layer.module, 1);
  const auto x = Random(2).normal({2, 5, kWidth}).requires_grad_();
  auto input = input_for(layer);
  input.key_mask = mask_of({5, 0}, 5);
  const auto y = layer->forward(x, input).x;
  const auto bias = Weights(*layer.module)["out_proj.bias"];
  EXPECT_TRUE(at::equal(y[1], bias.expand_as(y[1])));
  y.sum().backward();
  EXPECT_TRUE(x.grad().isfinite().all().item<bool>());
  EXPECT_EQ(x.grad()[1].abs().max().item<double>(), 0);
}

TEST_P(CausalForm, DoesNotSeeTheFuture) {
  const Layer layer(GetParam());
  randomize(*layer.module, 1);
  const auto x = Random(2).normal({2, 7, kWidth});
  const auto input = input_for(layer);
  const auto before = layer->forward(x, input).x;
  for (int64_t t = 1; t < 7; ++t) {
    auto other = x.clone();
    other.narrow(1, t, 7 - t).add_(3);
    const auto after = layer->forward(other, input).x;
    EXPECT_TRUE(at::equal(before.narrow(1, 0, t), after.narrow(1, 0, t)));
    EXPECT_FALSE(at::equal(before.select(1, t), after.select(1, t)));
  }
}

TEST_P(CrossForm, AttendsToAnotherSequence) {
  const Layer layer(GetParam());
  randomize(*layer.module, 1);
  const auto x = Random(2).normal({2, 5, kWidth});
  auto input = input_for(layer);
  input.context = Random(3).normal({2, 8, kWidth});
  const auto output = layer->forward(x, input);
  EXPECT_EQ(output.x.sizes(), x.sizes());
  if (layer.traits.memory) {
    EXPECT_EQ(output.memory->sizes(), at::IntArrayRef({2, kMemory, kWidth}));
  }
  expect_near(output.x, plain_layer(GetParam(), *layer.module, x, input));
}

TEST_P(StreamingForm, StepMatchesForward) {
  at::NoGradGuard no_grad;
  const Layer layer(GetParam());
  randomize(*layer.module, 1);
  const auto x = Random(2).normal({2, 7, kWidth});
  const auto input = input_for(layer);
  const auto expected = layer->forward(x, input).x;
  for (const int64_t prompt : {0, 3}) {
    auto [y, memory, state] = layer->forward(x.narrow(1, 0, prompt), input);
    expect_near(y, expected.narrow(1, 0, prompt));
    for (int64_t t = prompt; t < 7; ++t) {
      expect_near(layer->step(x.select(1, t), state), expected.select(1, t));
    }
  }
}

TEST_P(StreamingForm, PiecesEqualTheWhole) {
  const Layer layer(GetParam());
  randomize(*layer.module, 1);
  const auto x = Random(2).normal({2, 7, kWidth});
  const auto input = input_for(layer);
  const auto whole = layer->forward(x, input);
  const auto first = layer->forward(x.narrow(1, 0, 4), input);
  nn::LayerInput rest;
  rest.state = first.state;
  const auto second = layer->forward(x.narrow(1, 4, 3), rest);
  expect_near(at::cat({first.x, second.x}, 1), whole.x);
  ASSERT_EQ(second.state.tensors.size(), whole.state.tensors.size());
  for (size_t i = 0; i < whole.state.tensors.size(); ++i) {
    expect_near(second.state.tensors[i], whole.state.tensors[i]);
  }
}

// Prompts of different lengths in one batch: each goes on from its own end.
TEST_P(StreamingForm, StepsOnFromPaddedPrompts) {
  at::NoGradGuard no_grad;
  const Layer layer(GetParam());
  randomize(*layer.module, 1);
  const auto x = Random(2).normal({2, 5, kWidth});
  const auto next = Random(3).normal({2, kWidth});
  auto input = input_for(layer);
  input.key_mask = mask_of({5, 2}, 5);
  auto state = layer->forward(x, input).state;
  const auto y = layer->step(next, state);
  auto alone =
      layer->forward(x.narrow(0, 1, 1).narrow(1, 0, 2), input_for(layer)).state;
  expect_near(y.narrow(0, 1, 1), layer->step(next.narrow(0, 1, 1), alone));
}

const Wanted kAny = [](const nn::AttentionTraits&) { return true; };
const Wanted kCross = [](const nn::AttentionTraits& t) { return t.cross; };
const Wanted kStreams = [](const nn::AttentionTraits& t) { return t.streams; };

INSTANTIATE_TEST_SUITE_P(Registry, EveryForm, ::testing::ValuesIn(all_forms()),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Registry, EncoderForm,
                         ::testing::ValuesIn(forms(false, kAny)), name_of);
INSTANTIATE_TEST_SUITE_P(Registry, CausalForm,
                         ::testing::ValuesIn(forms(true, kAny)), name_of);
INSTANTIATE_TEST_SUITE_P(Registry, CrossForm,
                         ::testing::ValuesIn(forms(false, kCross)), name_of);
INSTANTIATE_TEST_SUITE_P(Registry, StreamingForm,
                         ::testing::ValuesIn(forms(true, kStreams)), name_of);

}  // namespace
}  // namespace luna::nn::testing
