#include <ATen/core/dispatch/Dispatcher.h>
#include <luna/nn/multi_head_attention.h>

#include <cstddef>
#include <limits>
#include <nlohmann/json.hpp>

#include "nn/layers.h"

namespace luna::nn::testing {
namespace {

using config::OptionMap;

TEST(AttentionRegistry, HasTheMechanismsInOrder) {
  std::vector<std::string> names;
  for (const auto& info : nn::attentions()) {
    names.push_back(info.name);
    EXPECT_FALSE(info.summary.empty());
    EXPECT_FALSE(info.publication.empty());
    EXPECT_EQ(bool(info.make_heads), info.traits.head_level);
    EXPECT_EQ(&nn::find_attention(info.name), &info);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"softmax", "universal", "nested",
                                             "linear", "rff"}));
}

TEST(AttentionRegistry, UnknownNameListsKnownOnes) {
  expect_failure<c10::ValueError>([] { nn::find_attention("unversal"); },
                                  {"softmax, universal, nested, linear, rff",
                                   "nearest: universal", "got unversal"});
  expect_failure<c10::ValueError>(
      [] {
        nn::make_attention_layer("rrf", {kWidth, kHeads});
      },
      {"nearest: rff"});
}

TEST(AttentionRegistry, WholeLayersAreNoHeads) {
  expect_failure<c10::ValueError>(
      [] {
        nn::make_head_attention("nested", {4, 3});
      },
      {"head-level", "nested"});
  expect_failure<c10::ValueError>(
      [] {
        nn::MultiHeadAttention layer(
            nn::MultiHeadAttentionOptions{{kWidth, kHeads}, "nested", {}});
      },
      {"head-level", "nested"});
}

TEST(AttentionRegistry, UnreadOptionIsAnError) {
  for (const auto& form : all_forms()) {
    std::vector<std::string> parts{form.name, "got colour"};
    expect_failure<c10::ValueError>(
        [&] {
          Layer layer(form, config::OptionMap{{"colour", int64_t{3}}});
        },
        parts);
  }
  expect_failure<c10::ValueError>(
      [] {
        Layer layer({"universal", false}, {{"hiden", int64_t{8}}});
      },
      {"nearest: hidden"});
  // An option of one form is none of the other's.
  expect_failure<c10::ValueError>(
      [] {
        Layer layer({"nested", false}, {{"activation", "elu"}});
      },
      {"activation", "pack_heads"});
  expect_failure<c10::ValueError>(
      [] {
        Layer layer({"nested", true}, {{"pack_heads", int64_t{2}}});
      },
      {"pack_heads", "activation"});
}

TEST(AttentionRegistry, OptionsOutOfRangeAreErrors) {
  size_t ranges = 0;
  for (const auto& info : nn::attentions()) {
    for (const auto& option : info.options) {
      if (!option.minimum) continue;
      ++ranges;
      config::OptionValue low = *option.minimum - 1;
      if (std::holds_alternative<int64_t>(option.default_value)) {
        low = static_cast<int64_t>(*option.minimum) - 1;
      }
      expect_failure<c10::ValueError>(
          [&] {
            Layer layer({info.name, false}, {{option.name, low}});
          },
          {option.name + " >= ", "got " + config::to_string(low)});
    }
  }
  EXPECT_GE(ranges, 6u);
  expect_failure<c10::ValueError>(
      [] {
        Layer layer({"softmax", false},
                    {{"dropout", std::numeric_limits<double>::quiet_NaN()}});
      },
      {"dropout >= 0 and <= 1", "got nan"});
  expect_failure<c10::ValueError>(
      [] {
        Layer layer({"nested", true}, {{"activation", "softplu"}});
      },
      {"softplus, elu (nearest: softplus)", "got softplu"});
  expect_failure<c10::ValueError>(
      [] {
        Layer layer({"rff", false}, {{"features", int64_t{7}}});
      },
      {"even", "7"});
}

TEST(AttentionRegistry, OptionsOfTheWrongTypeAreErrors) {
  expect_failure<c10::TypeError>(
      [] {
        Layer layer({"universal", false}, {{"M", "eight"}});
      },
      {"M to be an integer", "string eight"});
  expect_failure<c10::TypeError>(
      [] {
        Layer layer({"universal", false}, {{"gated", int64_t{1}}});
      },
      {"gated to be a bool"});
  // A whole number may stand for a number.
  EXPECT_NO_THROW(Layer({"softmax", false}, {{"dropout", int64_t{0}}}));
}

TEST(AttentionRegistry, OptionsReachTheModule) {
  const Layer layer({"universal", false},
                    {{"M", int64_t{5}}, {"shared_channels", true}});
  const auto parameters = layer.module->named_parameters();
  EXPECT_EQ(parameters["feature_map.projection"].size(0), 5);
  EXPECT_EQ(parameters["feature_map.hidden_weight"].size(0), 1);
}

TEST(AttentionRegistry, HeadsMustDivideTheWidth) {
  for (const auto& info : nn::attentions()) {
    expect_failure<c10::ValueError>(
        [&] {
          nn::make_attention_layer(info.name, {10, 3});
        },
        {"multiple", "10", "3 heads"});
  }
}

TEST(AttentionRegistry, LayersWithoutAStateRefuseToStep) {
  nn::StreamState state;
  for (const bool causal : {false, true}) {
    const Layer layer({"softmax", causal});
    expect_failure<c10::ValueError>(
        [&] {
          layer->step(at::zeros({2, kWidth}, at::kDouble), state);
        },
        {"expected"});
  }
  const Layer nested({"nested", false});
  expect_failure<c10::ValueError>(
      [&] {
        nested->step(at::zeros({2, kWidth}, at::kDouble), state);
      },
      {"causal"});
  const Layer universal({"universal", true});
  expect_failure<c10::ValueError>(
      [&] {
        universal->step(at::zeros({2, kWidth}, at::kDouble), state);
      },
      {"state that forward returned", "0 tensors"});
}

TEST(AttentionRegistry, TheDispatcherHasItAsJson) {
  const auto op = c10::Dispatcher::singleton()
                      .findSchemaOrThrow("luna::attentions", "")
                      .typed<std::string()>();
  const auto all = nlohmann::json::parse(op.call());
  ASSERT_EQ(all.size(), nn::attentions().size());
  for (size_t i = 0; i < all.size(); ++i) {
    const auto& info = nn::attentions()[i];
    EXPECT_EQ(all[i]["name"], info.name);
    EXPECT_EQ(all[i]["summary"], info.summary);
    EXPECT_EQ(all[i]["publication"], info.publication);
    EXPECT_EQ(all[i]["traits"]["streams"], info.traits.streams);
    EXPECT_EQ(all[i]["traits"]["memory"], info.traits.memory);
    EXPECT_EQ(all[i]["options"].size(), info.options.size());
  }
  const auto& first = all[1]["options"][0];
  EXPECT_EQ(first["name"], "M");
  EXPECT_EQ(first["type"], "integer");
  EXPECT_EQ(first["default"], 8);
  EXPECT_EQ(first["minimum"], 1);
}

}  // namespace
}  // namespace luna::nn::testing
