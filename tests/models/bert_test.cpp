// What holds for every mechanism; tests/python/test_hugging_face.py compares
// softmax with transformers.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <luna/models/bert.h>
#include <luna/models/vit.h>
#include <luna/nn/attention_registry.h>

#include "support/errors.h"

namespace luna::models {
namespace {

using luna::testing::expect_error;

EncoderLayerOptions small_layer(const std::string& attention) {
  EncoderLayerOptions layer;
  layer.attention = attention;
  layer.width = 12;
  layer.heads = 3;
  layer.ffn = 16;
  return layer;
}

BertConfig small_bert(const std::string& attention) {
  BertConfig config;
  config.vocabulary = 20;
  config.positions = 10;
  config.layers = 2;
  config.layer = small_layer(attention);
  config.layer.pre_norm = false;
  config.classes = 3;
  return config;
}

std::vector<std::string> head_level() {
  std::vector<std::string> names;
  for (const auto& info : nn::attentions()) {
    if (info.traits.head_level) names.push_back(info.name);
  }
  return names;
}

TEST(Bert, PaddingChangesNothing) {
  at::NoGradGuard no_grad;
  for (const std::string& attention : head_level()) {
    SCOPED_TRACE(attention);
    Bert bert(small_bert(attention));
    bert->eval();
    const auto ids = at::randint(20, {1, 10}, at::kLong);
    const auto mask = at::arange(10).lt(6).unsqueeze(0);
    const auto padded = bert(BertInput{ids, std::nullopt, mask});
    const auto alone = bert(BertInput{ids.narrow(1, 0, 6)});
    EXPECT_TRUE(at::allclose(padded.logits, alone.logits, 1e-4, 1e-5));
    EXPECT_TRUE(at::allclose(padded.hidden.back().narrow(1, 0, 6),
                             alone.hidden.back(), 1e-4, 1e-5));
    // And what is not padding counts.
    const auto cut = bert(BertInput{ids.narrow(1, 0, 5)});
    EXPECT_FALSE(at::allclose(cut.logits, alone.logits, 1e-4, 1e-5));
  }
}

TEST(Bert, GradientsReachEveryParameter) {
  for (const std::string& attention : head_level()) {
    SCOPED_TRACE(attention);
    Bert bert(small_bert(attention));
    const auto ids = at::randint(20, {4, 10}, at::kLong);
    const auto types = at::randint(2, {4, 10}, at::kLong);
    bert(BertInput{ids, types}).logits.square().sum().backward();
    for (const auto& item : bert->named_parameters()) {
      EXPECT_TRUE(item.value().grad().defined()) << item.key();
    }
  }
}

TEST(Vit, TakesPicturesOfOtherSizes) {
  at::NoGradGuard no_grad;
  for (const std::string& attention : head_level()) {
    SCOPED_TRACE(attention);
    VitConfig config;
    config.image_size = 12;
    config.patch_size = 4;
    config.layers = 1;
    config.layer = small_layer(attention);
    config.classes = 2;
    Vit vit(config);
    vit->eval();
    EXPECT_EQ(vit(at::randn({2, 3, 12, 12})).last.sizes(),
              (at::IntArrayRef{2, 10, 12}));
    EXPECT_EQ(vit(at::randn({2, 3, 9, 21})).last.sizes(),
              (at::IntArrayRef{2, 11, 12}));
  }
}

TEST(Bert, RefusesWhatItCannotTake) {
  Bert bert(small_bert("softmax"));
  const auto ids = at::zeros({1, 11}, at::kLong);
  expect_error<c10::ValueError>([&] { bert(BertInput{ids}); },
                                {"at most 10", "got 11"});
  expect_error<c10::ValueError>([&] { bert(BertInput{ids[0]}); },
                                {"[batch, length]", "[11]"});
  expect_error<c10::ValueError>(
      [&] {
        bert(BertInput{ids.narrow(1, 0, 3), at::zeros({1, 2}, at::kLong)});
      },
      {"type_ids", "[1, 3]", "[1, 2]"});
  auto config = small_bert("nested");
  expect_error<c10::ValueError>([&] { Bert{config}; },
                                {"without a memory", "nested"});
  config = small_bert("softmax");
  config.layer.heads = 5;
  expect_error<c10::ValueError>([&] { Bert{config}; }, {"12 and 5 heads"});
  VitConfig vit;
  vit.image_size = 3;
  vit.patch_size = 4;
  expect_error<c10::ValueError>([&] { Vit{vit}; },
                                {"image_size 3", "patch_size 4"});
}

}  // namespace
}  // namespace luna::models
