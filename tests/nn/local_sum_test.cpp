// Neighbours beside attention: the module alone, and in a layer of heads.

#include <luna/nn/multi_head_attention.h>

#include <cmath>

#include "nn/layers.h"
#include "support/convolution.h"
#include "support/errors.h"

namespace luna::nn::testing {
namespace {

using luna::testing::convolved;
using luna::testing::expect_error;

constexpr LocalShape kLine{.taps = 3, .columns = 0},
    kSquare{.taps = 3, .columns = 3};

TEST(LocalSumModule, StartsAsTorchsConvolutions) {
  at::manual_seed(1);
  for (const LocalShape& shape : {kLine, kSquare}) {
    const int64_t rows = shape.columns > 0 ? shape.taps : 1;
    LocalSum local(200, shape);
    const auto parameters = local->named_parameters();
    ASSERT_EQ(parameters.size(), 1u);
    const auto weight = parameters["weight"];
    EXPECT_EQ(weight.sizes(), at::IntArrayRef({200, rows, shape.taps}));
    const double bound = 1 / std::sqrt(static_cast<double>(rows * shape.taps));
    for (const double sign : {-1.0, 1.0}) {
      const double most = (sign * weight).max().item<double>();
      EXPECT_LE(most, bound * (1 + 1e-6));
      EXPECT_GE(most, bound * 0.95);
    }
  }
}

TEST(LocalSumModule, HearsNothingOfWhatIsMasked) {
  const auto x = Random(1).normal({2, 6, kWidth});
  const auto mask = Random(2).coins({2, 6}), there = mask.unsqueeze(2);
  for (const LocalShape& shape : {kLine, kSquare}) {
    LocalSum local(kWidth, shape);
    local->to(at::kDouble);
    const auto heard = local->forward(x, mask);
    EXPECT_TRUE(at::equal(
        heard,
        local->forward(at::where(there, x, at::full_like(x, 50)), mask)));
    expect_near(heard, convolved(x * there, local->weight, shape.columns));
    expect_near(local->forward(x, mask.to(at::kDouble)), heard);
  }
}

class LocalInLayer : public ::testing::TestWithParam<std::string> {
 protected:
  static MultiHeadAttention layer_of(const LocalShape& local) {
    MultiHeadAttention layer(options_of(local));
    layer->to(at::kDouble);
    randomize(*layer, 1);
    return layer;
  }
  static MultiHeadAttentionOptions options_of(const LocalShape& local,
                                              bool causal = false) {
    return {.shape = {.embed_dim = kWidth,
                      .num_heads = kHeads,
                      .causal = causal,
                      .local = local},
            .mechanism = GetParam()};
  }

  /// The layer without neighbours, and without out_proj: what attend gives.
  static MultiHeadAttention inside(MultiHeadAttention layer) {
    MultiHeadAttention plain(options_of({}));
    plain->to(at::kDouble);
    at::NoGradGuard no_grad;
    const auto weights = layer->named_parameters();
    for (auto& entry : plain->named_parameters()) {
      entry.value().copy_(weights[entry.key()]);
    }
    plain->out_proj->weight.copy_(at::eye(kWidth, at::kDouble));
    plain->out_proj->bias.zero_();
    return plain;
  }

  static void expect_formula(const LocalShape& shape, const at::Tensor& x,
                             const LayerInput& input) {
    auto layer = layer_of(shape);
    auto real = at::ones({x.size(0), x.size(1)}, at::kBool);
    if (input.key_mask) real = *input.key_mask;
    const auto local = convolved(layer->v_proj(x) * real.unsqueeze(2),
                                 layer->local->weight, shape.columns);
    const auto expected =
        layer->out_proj(inside(layer)->forward(x, input).x + local);
    expect_near(layer->forward(x, input).x.index({real}),
                expected.index({real}));
  }
};

TEST_P(LocalInLayer, AddsWhatNeighboursHave) {
  const auto x = Random(2).normal({2, 6, kWidth});
  LayerInput masked, cross;
  masked.key_mask = mask_of({6, 4}, 6);
  cross.context = Random(3).normal({2, 5, kWidth});
  for (const LocalShape& shape : {kLine, kSquare}) {
    SCOPED_TRACE(shape.columns);
    expect_formula(shape, x, {});
    expect_formula(shape, x, masked);
    expect_error<c10::Error>([&] { layer_of(shape)->forward(x, cross); },
                             {"context", "local"});
  }
}

TEST_P(LocalInLayer, PaddingChangesNothing) {
  const auto x = Random(3).normal({2, 6, kWidth});
  LayerInput input;
  input.key_mask = mask_of({6, 3}, 6);
  auto other = x.clone();
  other[1].narrow(0, 3, 3).fill_(50);
  for (const LocalShape& shape : {kLine, kSquare}) {
    auto layer = layer_of(shape);
    const auto before = layer->forward(x, input).x;
    const auto after = layer->forward(other, input).x;
    EXPECT_TRUE(at::equal(before[0], after[0]));
    EXPECT_TRUE(at::equal(before[1].narrow(0, 0, 3), after[1].narrow(0, 0, 3)));
    expect_near(before[1].narrow(0, 0, 3),
                layer->forward(x.narrow(0, 1, 1).narrow(1, 0, 3)).x[0]);
  }
}

TEST_P(LocalInLayer, PackedEqualsSeparate) {
  const auto x = Random(3).normal({1, 9, kWidth});
  auto layer = layer_of(kLine);
  LayerInput input;
  for (const auto dtype : {at::kInt, at::kLong}) {
    input.cu_seqlens_q = at::tensor({0, 3, 3, 9}, dtype);
    const auto packed = layer->forward(x, input).x;
    expect_near(packed.narrow(1, 0, 3), layer->forward(x.narrow(1, 0, 3)).x);
    expect_near(packed.narrow(1, 3, 6), layer->forward(x.narrow(1, 3, 6)).x);
  }
  auto square = layer_of(kSquare);
  EXPECT_THROW(square->forward(x, input), c10::Error);
}

TEST_P(LocalInLayer, IsNotCausal) {
  expect_error<c10::Error>(
      [] {
        MultiHeadAttention layer(options_of(kLine, true));
        layer->forward(at::zeros({1, 4, kWidth}));
      },
      {"causal"});
}

TEST_P(LocalInLayer, HasItsWeightUnderItsName) {
  const auto plain = layer_of({})->named_parameters();
  EXPECT_FALSE(plain.contains("local.weight"));
  for (const LocalShape& shape : {kLine, kSquare}) {
    const auto layer =
        make_attention_layer(GetParam(), options_of(shape).shape);
    const auto parameters = as_module(layer)->named_parameters();
    EXPECT_EQ(parameters.size(), plain.size() + 1);
    const int64_t rows = shape.columns > 0 ? 3 : 1;
    ASSERT_TRUE(parameters.contains("local.weight"));
    EXPECT_EQ(parameters["local.weight"].sizes(),
              at::IntArrayRef({kWidth, rows, 3}));
  }
}

TEST_P(LocalInLayer, CloneIsDeep) {
  const auto x = Random(2).normal({2, 6, kWidth});
  auto layer = layer_of(kSquare);
  const auto expected = layer->forward(x).x;
  const auto copy = layer->clone();
  const auto again = [&] {
    return std::dynamic_pointer_cast<AttentionLayer>(copy)->forward(x).x;
  };
  EXPECT_TRUE(at::equal(again(), expected));
  {
    at::NoGradGuard no_grad;
    copy->named_parameters()["local.weight"].zero_();
  }
  EXPECT_FALSE(at::equal(again(), expected));
  EXPECT_TRUE(at::equal(layer->forward(x).x, expected));
}

INSTANTIATE_TEST_SUITE_P(, LocalInLayer,
                         ::testing::Values("softmax", "universal", "linear"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace luna::nn::testing
