// How weights start, and how they are called.

#include <cmath>
#include <map>

#include "models/small_models.h"

namespace luna::models::testing {
namespace {

using Shapes = std::map<std::string, std::vector<int64_t>>;

// The names are the format of weights' files: this list is not to change.
TEST(ModelNames, AreTheFormat) {
  auto config = config_of({"nested", "post", "cls"});
  config.layers = 1;
  config.embedding_norm = true;
  config.head = "mlp";
  config.head_hidden = 5;
  const int64_t D = 12, F = 10;
  Shapes expected{
      {"embedding.tokens.weight", {kVocabulary + 2, D}},
      {"embedding.positions.weight", {kLongest + 2, D}},
      {"embedding.norm.weight", {D}},
      {"embedding.norm.bias", {D}},
      {"memory", {4, D}},
      {"memory_norm.weight", {D}},
      {"memory_norm.bias", {D}},
      {"layers.0.ffn.up.weight", {F, D}},
      {"layers.0.ffn.up.bias", {F}},
      {"layers.0.ffn.down.weight", {D, F}},
      {"layers.0.ffn.down.bias", {D}},
      {"head.hidden.weight", {5, D}},
      {"head.hidden.bias", {5}},
      {"head.out.weight", {kClasses, 5}},
  };
  for (const char* norm : {"attention_norm", "memory_norm", "ffn_norm"}) {
    expected[std::string("layers.0.") + norm + ".weight"] = {D};
    expected[std::string("layers.0.") + norm + ".bias"] = {D};
  }
  for (const char* projection :
       {"pq_proj", "pc_proj", "q_proj", "c_proj", "out_proj"}) {
    const auto name = std::string("layers.0.attention.") + projection;
    expected[name + ".weight"] = {D, D};
    expected[name + ".bias"] = {D};
  }
  Shapes actual;
  for (const auto& entry : random_model(config)->named_parameters()) {
    actual[entry.key()] = entry.value().sizes().vec();
  }
  EXPECT_EQ(actual, expected);
}

TEST(ModelNames, OfPreNorm) {
  const auto has = [](const Kind& kind, const std::string& name) {
    return random_model(config_of(kind))->named_parameters().contains(name);
  };
  EXPECT_TRUE(has({"universal", "pre", "mean"}, "norm.weight"));
  EXPECT_FALSE(has({"universal", "post", "mean"}, "norm.weight"));
  EXPECT_TRUE(has({"nested", "pre", "memory"}, "last_memory_norm.weight"));
  EXPECT_FALSE(has({"nested", "pre", "mean"}, "last_memory_norm.weight"));
  EXPECT_TRUE(has({"universal", "pre", "mean"},
                  "layers.1.attention.feature_map.hidden_weight"));
  EXPECT_TRUE(has({"universal", "pre", "mean"}, "head.out.bias"));
}

/// Wide enough for the spread of a weight to be known to a few percent.
std::shared_ptr<Model> started(const std::string& attention,
                               const std::string& init) {
  at::manual_seed(2);
  auto config = small_config(attention);
  config.init = init;
  config.width = 96;
  config.ffn = 200;
  config.memory_length = 50;
  auto task = small_task();
  task.vocabulary = 254;
  return make_model(config, task, 254);
}

void expect_spread(const Model& model, const std::string& name,
                   double deviation) {
  const auto weight = model.named_parameters()[name];
  EXPECT_NEAR(weight.std().item<double>() / deviation, 1, 0.05) << name;
  EXPECT_NEAR(weight.mean().item<double>() / deviation, 0, 0.05) << name;
}

TEST(Start, Xavier) {
  // U(-a, a), a = gain sqrt(6 / (in + out)), has standard deviation a / sqrt 3.
  const auto xavier = [](double in, double out, double gain = 1) {
    return gain * std::sqrt(2 / (in + out));
  };
  const double gain = 1 / std::sqrt(2.0), normal = 1 / std::sqrt(96.0);
  for (const std::string attention : {"nested", "softmax", "universal"}) {
    const auto model = started(attention, "xavier");
    const auto in = std::string("layers.1.attention.");
    expect_spread(*model, in + "q_proj.weight", xavier(96, 96, gain));
    expect_spread(*model, in + "out_proj.weight", xavier(96, 96));
    expect_spread(*model, "layers.0.ffn.up.weight", xavier(96, 200));
    expect_spread(*model, "layers.0.ffn.down.weight", xavier(96, 200));
    expect_spread(*model, "embedding.tokens.weight", normal);
    expect_spread(*model, "embedding.positions.weight", normal);
    if (attention == "nested") {
      expect_spread(*model, in + "pc_proj.weight", xavier(96, 96, gain));
      expect_spread(*model, "memory", normal);
    }
    for (const auto& entry : model->named_parameters()) {
      if (entry.key().find("feature_map") != std::string::npos) continue;
      if (!entry.key().ends_with("bias")) continue;
      EXPECT_EQ(entry.value().abs().max().item<double>(), 0) << entry.key();
    }
  }
}

TEST(Start, Bert) {
  const auto model = started("nested", "bert");
  for (const char* name :
       {"layers.1.attention.q_proj.weight", "layers.0.ffn.up.weight",
        "embedding.tokens.weight", "embedding.positions.weight"}) {
    expect_spread(*model, name, 0.02);
  }
  expect_spread(*model, "memory", 1 / std::sqrt(96.0));
  const auto bias = model->named_parameters()["layers.0.ffn.up.bias"];
  EXPECT_EQ(bias.abs().max().item<double>(), 0);
}

TEST(Start, Torch) {
  const auto model = started("universal", "torch");
  expect_spread(*model, "embedding.tokens.weight", 0.02);
  // torch's Linear: U(+-1/sqrt(in))
  expect_spread(*model, "layers.0.ffn.up.weight", 1 / std::sqrt(3 * 96.0));
  expect_spread(*model, "layers.0.attention.q_proj.weight",
                1 / std::sqrt(3 * 96.0));
}

// psi: U(-1, 1) in the hidden layer, whatever the projections start as.
TEST(Start, LeavesTheFeatureMapItsOwn) {
  for (const std::string init : {"torch", "xavier", "bert"}) {
    const auto model = started("universal", init);
    const auto in = std::string("layers.1.attention.feature_map.");
    expect_spread(*model, in + "hidden_weight", 1 / std::sqrt(3.0));
    expect_spread(*model, in + "output_weight", 1 / std::sqrt(3 * 64.0));
  }
}

}  // namespace
}  // namespace luna::models::testing
