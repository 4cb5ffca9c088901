#include "luna/train/feature_use.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <luna/nn/feature_map.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "luna/models/classifier.h"
#include "luna/train/run_model.h"
#include "train/tiny.h"

namespace luna::train {
namespace {

using Json = nlohmann::ordered_json;

models::ModelConfig small(const std::string& attention,
                          const std::string& pooling) {
  models::ModelConfig config;
  config.attention = attention;
  config.pooling = pooling;
  config.layers = 2;
  config.width = 8;
  config.ffn = 8;
  config.heads = 2;
  return config;
}

std::shared_ptr<models::Model> make(const models::ModelConfig& config) {
  at::manual_seed(1);
  return make_run_model(config, testing::tiny_data(1, 1)->info(), 6);
}

std::vector<nn::FeatureMapImpl*> maps_of(models::Model& model) {
  std::vector<nn::FeatureMapImpl*> maps;
  for (const auto& module : model.modules()) {
    if (auto* map = dynamic_cast<nn::FeatureMapImpl*>(module.get())) {
      maps.push_back(map);
    }
  }
  return maps;
}

std::vector<FeatureUse> use_of(models::Model& model) {
  return feature_use(model, *testing::tiny_data(40, 2), model.batch_options());
}

/// u does not depend on the tokens: w = 0, u_i = i.
void fix_projections(nn::FeatureMapImpl& map) {
  map.projection.zero_();
  map.projection_bias.copy_(at::arange(map.projection_bias.numel()));
}

TEST(FeatureUse, KnowsWhereUIs) {
  const auto model = make(small("universal", "mean"));
  const at::NoGradGuard no_grad;
  const auto maps = maps_of(*model);
  ASSERT_EQ(maps.size(), 2u);
  fix_projections(*maps[1]);
  const auto uses = use_of(*model);
  ASSERT_EQ(uses.size(), 2u);
  for (size_t layer = 0; layer < 2; ++layer) {
    // The name before those of its parameters.
    const std::string weight = uses[layer].map + ".hidden_weight";
    EXPECT_TRUE(model->named_parameters().contains(weight)) << weight;
    ASSERT_EQ(std::ssize(uses[layer].u), kQuantiles);
    EXPECT_TRUE(std::ranges::is_sorted(uses[layer].u));
  }
  // As many of 0, 1, ..., 7: quantile p is floor(8 p).
  for (int64_t i = 0; i < kQuantiles; ++i) {
    const double p = (static_cast<double>(i) + 0.5) / kQuantiles;
    EXPECT_EQ(uses[1].u[i], std::floor(8 * p)) << i;
  }
  // The first layer's u follows the tokens.
  EXPECT_LT(uses[0].u.front(), uses[0].u.back());
}

TEST(FeatureUse, CountsLiveFeaturesAndSilentTokens) {
  const auto model = make(small("universal", "mean"));
  const at::NoGradGuard no_grad;
  const auto maps = maps_of(*model);
  for (auto* map : maps) {
    fix_projections(*map);
    map->hidden_weight.fill_(0);
    map->hidden_weight.select(1, 0).fill_(1);
    map->hidden_bias.zero_();
    map->output_weight.fill_(1);
  }
  // psi(u) = max(0, u - 5.5): of u = 0..7 two live. The other: nothing lives.
  maps[0]->output_bias.fill_(-5.5);
  maps[1]->output_bias.fill_(-100);
  const auto uses = use_of(*model);
  for (const auto side : {&FeatureUse::query, &FeatureUse::key}) {
    EXPECT_DOUBLE_EQ((uses[0].*side).live, 0.25);
    EXPECT_DOUBLE_EQ((uses[0].*side).silent, 0);
    EXPECT_DOUBLE_EQ((uses[1].*side).live, 0);
    EXPECT_DOUBLE_EQ((uses[1].*side).silent, 1);
  }
}

TEST(FeatureUse, LeavesTheModelAsItWas) {
  for (const char* pooling : {"mean", "cls"}) {
    const auto model = make(small("universal", pooling));
    for (const bool training : {true, false}) {
      model->train(training);
      EXPECT_EQ(use_of(*model).size(), 2u);
      EXPECT_EQ(model->is_training(), training);
      for (const auto* map : maps_of(*model)) EXPECT_FALSE(map->watch);
    }
  }
}

TEST(FeatureUse, NoneWithoutFeatureMaps) {
  const auto model = make(small("softmax", "mean"));
  EXPECT_TRUE(use_of(*model).empty());
}

TEST(FeatureUse, IsWrittenBeforeTheFirstStepAndOfTheTestedWeights) {
  const std::string folder = testing::fresh_folder("features");
  TrainConfig config = testing::tiny_config();
  config.model = small("universal", "mean");
  TrainOptions options = testing::tiny_options(folder);
  options.make_model = nullptr;
  train(config, testing::tiny_splits(), options);
  std::istringstream text(testing::bytes_of(folder + "/metrics.jsonl"));
  std::vector<Json> found;
  int64_t tested = -1;
  for (std::string line; std::getline(text, line);) {
    const Json json = Json::parse(line);
    if (json["kind"] == "features") found.push_back(json);
    if (json["kind"] == "test") tested = json["step"];
  }
  ASSERT_EQ(found.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(found[i]["step"], i < 2 ? 0 : tested);
    EXPECT_EQ(std::ssize(found[i]["u"]), kQuantiles);
  }
  EXPECT_GT(tested, 0);
}

}  // namespace
}  // namespace luna::train
