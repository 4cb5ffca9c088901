// Every config of the tree can be read and built, and says what the papers say.

#include <luna/data/glue.h>
#include <luna/data/tasks.h>
#include <luna/data/translation.h>
#include <luna/models/parameter_counts.h>
#include <luna/models/translator.h>
#include <luna/train/open_data.h>
#include <luna/train/read_config.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>

#include "models/small_models.h"
#include "support/errors.h"

namespace luna::models::testing {
namespace {

std::filesystem::path configs() {
  const char* root = std::getenv("LUNA_SOURCE_DIR");
  return std::filesystem::path(root == nullptr ? "." : root) / "configs";
}

data::TaskInfo task(const std::string& name) {
  if (name == "cifar10") return data::find_task(name).info;
  const std::map<std::string, std::pair<int64_t, int64_t>> sizes{
      {"listops", {15, 10}},   {"text", {256, 2}},
      {"retrieval", {256, 2}}, {"retrieval-imdb", {256, 2}},
      {"image", {256, 10}},    {"pathfinder", {256, 2}},
      {"needles", {20, 10}},
  };
  data::TaskInfo info;
  info.task = name;
  std::tie(info.vocabulary, info.classes) = sizes.at(name);
  info.pairs = name.starts_with("retrieval");
  if (name == "image" || name == "pathfinder") info.height = info.width = 32;
  return info;
}

ParameterCounts counts_of(const train::TrainConfig& config) {
  return count_parameters(*make_model(config.model, task(config.data.task), 0));
}

/// What a recipe fixes for all its mechanisms.
int64_t shared(const ParameterCounts& counts) {
  return counts.total() - counts.own();
}

TEST(Configs, AllCanBeBuiltAndAreCalledAsTheirFiles) {
  int files = 0;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(configs())) {
    if (!entry.is_regular_file()) continue;
    // Lists of luna sweep are tests/train/sweep_list_test.cpp's.
    if (entry.path().extension() == ".txt") continue;
    ASSERT_EQ(entry.path().extension(), ".json") << entry.path();
    const auto config = train::read_train_config(entry.path());
    EXPECT_EQ(config.name, entry.path().stem()) << entry.path();
    ++files;
    if (!config.model.base.empty()) {  // what it is made of is elsewhere
      EXPECT_TRUE(data::is_glue_task(config.data.task)) << entry.path();
      continue;
    }
    if (config.data.task == data::kTranslationTask) {
      auto small = config.model;
      small.layers = 1;
      small.width = small.heads * 4;
      small.ffn = 4;
      EXPECT_NO_THROW(Translator(small, 10)) << entry.path();
      continue;
    }
    auto small = config.model;  // what a width may be, not how long it takes
    small.max_positions = 0;
    small.memory_length = 3;
    EXPECT_NO_THROW(make_model(small, task(config.data.task), 5))
        << entry.path();
  }
  EXPECT_GE(files, 97);
}

// SPEC, section 2; for a vocabulary of 1.
TEST(Configs, TranslatorsOfWmtHaveThePapersParameters) {
  const std::map<std::string, int64_t> expected{
      {"softmax", 44'138'496 + 512},
      {"nested-16", 48'878'592 + 512 * 16 + 512},
      {"nested-32", 48'878'592 + 512 * 32 + 512},
      {"nested-16-untied", 56'758'272 + 512 * 16 + 512},
      {"nested-32-untied", 56'758'272 + 512 * 32 + 512}};
  for (const auto& [name, count] : expected) {
    auto model = train::read_train_config(configs() / "translation" /
                                          ("wmt14-" + name + ".json"))
                     .model;
    model.init = "torch";  // which is quicker
    int64_t sum = 0;
    for (const auto& p : Translator(model, 1).parameters()) sum += p.numel();
    EXPECT_EQ(sum, count) << name;
  }
}

TEST(Configs, MechanismsOfARecipeDifferInTheirOwnParametersOnly) {
  for (const std::string name : {"listops", "text", "retrieval",
                                 "retrieval-imdb", "image", "pathfinder"}) {
    const auto same = [&](const std::string& folder,
                          const std::vector<std::string>& mechanisms) {
      std::set<int64_t> others, own;
      for (const auto& mechanism : mechanisms) {
        const auto counts = counts_of(train::read_train_config(
            configs() / "lra" / folder / (name + "-" + mechanism + ".json")));
        others.insert(shared(counts));
        own.insert(counts.own());
      }
      EXPECT_EQ(others.size(), 1u) << folder << " " << name;
      EXPECT_GT(own.size(), 1u) << folder << " " << name;
    };
    same("universal", {"softmax", "linear", "rff", "universal"});
    same("nested", {"softmax", "nested-16", "nested-128", "nested-256"});
  }
}

// From the paper's public implementation, without the token embedding.
TEST(Configs, NestedModelsHaveThePublishedNumberOfParameters) {
  const std::map<std::string, std::array<int64_t, 3>> published{
      {"listops", {6'048'256, 6'105'600, 6'171'136}},
      {"text", {5'245'952, 5'274'624, 5'307'392}},
      {"retrieval", {1'639'936, 1'654'272, 1'670'656}},
      {"image", {122'624, 129'792, 137'984}},
      {"pathfinder", {317'056, 331'392, 347'776}},
  };
  for (const auto& [task, numbers] : published) {
    for (size_t i = 0; i < 3; ++i) {
      const auto length = std::array{"16", "128", "256"}[i];
      const auto counts = counts_of(
          train::read_train_config(configs() / "lra" / "nested" /
                                   (task + "-nested-" + length + ".json")));
      EXPECT_EQ(counts.total() - counts.tokens, numbers[i]) << task << length;
    }
  }
}

TEST(Configs, SmallOnesNeedNoFiles) {
  for (const auto& entry :
       std::filesystem::directory_iterator(configs() / "small")) {
    auto config = train::read_train_config(entry.path());
    config.data.samples = 4;
    const auto splits = train::open_data(config.data, "");
    EXPECT_LE(splits.train->longest(), config.data.max_length) << entry.path();
    make_model(config.model, splits.train->info(), splits.train->longest());
  }
}

TEST(Configs, OverridesComeLast) {
  const auto path = configs() / "lra" / "universal" / "image-universal.json";
  const auto config = train::read_train_config(
      path, {"model.attention_options.M=4", "steps=7", "name=other",
             "optimizer.lr=.5", "data.path=1.2.3"});
  EXPECT_EQ(std::get<int64_t>(config.model.attention_options.at("M")), 4);
  EXPECT_EQ(config.steps, 7);
  EXPECT_EQ(config.name, "other");
  EXPECT_EQ(config.optimizer.lr, 0.5);
  EXPECT_EQ(config.data.path, "1.2.3");
  luna::testing::expect_error<c10::ValueError>(
      [&] { train::read_train_config(path, {"model.widht=3"}); },
      {"--set model.widht=3: model: ", "got widht", "nearest: width"});
}

TEST(ParameterCounts, OfASmallModel) {
  auto config = small_config("nested");
  config.layers = 1;
  config.embedding_norm = true;
  const auto counts = count_parameters(*random_model(config));
  const int64_t D = 12, F = 10, norm = 2 * D;
  EXPECT_EQ(counts.tokens, (kVocabulary + 2) * D);
  EXPECT_EQ(counts.positions, (kLongest + 2) * D);
  EXPECT_EQ(counts.attention, 5 * (D * D + D));
  EXPECT_EQ(counts.memory, 4 * D + 2 * norm);
  EXPECT_EQ(counts.ffn, 2 * D * F + D + F);
  EXPECT_EQ(counts.norms, 4 * norm);  // embedding, attention, FFN, last
  EXPECT_EQ(counts.head, kClasses * (D + 1));
  int64_t sum = 0;
  for (const auto& weight : random_model(config)->parameters()) {
    sum += weight.numel();
  }
  EXPECT_EQ(counts.total(), sum);
}

}  // namespace
}  // namespace luna::models::testing
