// Names and shapes of the weights are the format of files: this is its list.

#include <luna/nn/nested_attention.h>
#include <luna/nn/nested_causal_attention.h>
#include <luna/nn/universal_attention.h>

#include <map>

#include "nn/layers.h"

namespace luna::nn::testing {
namespace {

using Shapes = std::map<std::string, std::vector<int64_t>>;

Shapes shapes_of(const torch::nn::Module& module) {
  Shapes shapes;
  for (const auto& entry : module.named_parameters()) {
    shapes[entry.key()] = entry.value().sizes().vec();
  }
  for (const auto& entry : module.named_buffers()) {
    shapes[entry.key()] = entry.value().sizes().vec();
  }
  return shapes;
}

Shapes projections(const std::vector<std::string>& names) {
  Shapes shapes;
  for (const auto& name : names) {
    shapes[name + ".weight"] = {kWidth, kWidth};
    shapes[name + ".bias"] = {kWidth};
  }
  return shapes;
}

Shapes with(Shapes shapes, const Shapes& more) {
  shapes.insert(more.begin(), more.end());
  return shapes;
}

const Shapes kProjections =
    projections({"q_proj", "k_proj", "v_proj", "out_proj"});

// d = 4, M = L = 8, hidden 64
const Shapes kFeatureMap{
    {"feature_map.projection", {8, 4}},
    {"feature_map.projection_bias", {8}},
    {"feature_map.hidden_weight", {8, 64}},
    {"feature_map.hidden_bias", {8, 64}},
    {"feature_map.output_weight", {8, 64}},
    {"feature_map.output_bias", {8}},
};

TEST(ParameterNames, AreTheFormat) {
  const auto of = [](const std::string& name, bool causal,
                     const config::OptionMap& options = {}) {
    return shapes_of(*Layer({name, causal}, options).module);
  };
  const config::OptionMap untied{{"tied", false}};
  EXPECT_EQ(of("softmax", false), kProjections);
  EXPECT_EQ(of("linear", true), kProjections);
  EXPECT_EQ(of("universal", false), with(kProjections, kFeatureMap));
  EXPECT_EQ(of("rff", false), with(kProjections, {{"feature_map.random_"
                                                   "projection",
                                                   {32, 4}}}));
  EXPECT_EQ(of("nested", false), projections({"pq_proj", "pc_proj", "q_proj",
                                              "c_proj", "out_proj"}));
  EXPECT_EQ(of("nested", false, untied),
            projections({"pq_proj", "pk_proj", "pv_proj", "q_proj", "k_proj",
                         "v_proj", "out_proj"}));
  EXPECT_EQ(of("nested", true), projections({"pq_proj", "pc_proj", "q_proj",
                                             "c_proj", "out_proj"}));
  EXPECT_EQ(of("nested", true, untied),
            projections({"pq_proj", "pc_proj", "q_proj", "k_proj", "v_proj",
                         "out_proj"}));
}

TEST(ParameterNames, OfEveryFeatureMapOption) {
  nn::FeatureMapOptions options;
  options.shared_channels = true;
  options.per_head = true;
  options.gated = true;
  options.M = 5;
  options.L = 2;
  options.hidden = 7;
  const Shapes expected{
      {"projection", {3, 5, 4}}, {"projection_bias", {3, 5}},
      {"hidden_weight", {1, 7}}, {"hidden_bias", {1, 7}},
      {"output_weight", {2, 7}}, {"output_bias", {2}},
      {"gate_weight", {4}},      {"gate_bias", {}},
  };
  EXPECT_EQ(shapes_of(*nn::FeatureMap(nn::HeadShape{4, 3}, options)), expected);
}

TEST(ParameterNames, UniversalAttentionIsTheMultiHeadAttentionOfThatName) {
  const nn::UniversalAttention layer(kWidth, kHeads);
  EXPECT_EQ(shapes_of(*layer), with(kProjections, kFeatureMap));
}

// Five projections or seven (SPEC), D (D + 1) numbers each.
TEST(ParameterNames, NestedParameterCounts) {
  const auto count = [](const torch::nn::Module& module) {
    int64_t sum = 0;
    for (const auto& parameter : module.parameters()) sum += parameter.numel();
    return sum;
  };
  const int64_t D = 64;
  nn::NestedAttentionOptions untied;
  untied.tied = false;
  nn::NestedCausalAttentionOptions causal_untied;
  causal_untied.tied = false;
  EXPECT_EQ(count(*nn::NestedAttention(D, 8)), 5 * D * (D + 1));
  EXPECT_EQ(count(*nn::NestedAttention(D, 8, untied)), 7 * D * (D + 1));
  EXPECT_EQ(count(*nn::NestedCausalAttention(D, 8)), 5 * D * (D + 1));
  EXPECT_EQ(count(*nn::NestedCausalAttention(D, 8, causal_untied)),
            6 * D * (D + 1));
}

}  // namespace
}  // namespace luna::nn::testing
