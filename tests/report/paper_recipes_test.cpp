#include "luna/report/paper_recipes.h"

#include <gtest/gtest.h>
#include <luna/train/read_config.h>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace luna::report {
namespace {

namespace fs = std::filesystem;

train::TrainConfig config(const std::string& path) {
  return train::read_train_config(std::string(std::getenv("LUNA_SOURCE_DIR")) +
                                  "/configs/lra/" + path);
}

TEST(PaperRecipes, AreThoseOfTheConfigs) {
  int count = 0;
  for (const std::string paper : {"universal", "nested"}) {
    const fs::path folder =
        fs::path(std::getenv("LUNA_SOURCE_DIR")) / "configs/lra" / paper;
    for (const auto& entry : fs::directory_iterator(folder)) {
      const std::string name = paper + "/" + entry.path().filename().string();
      const train::TrainConfig c = config(name);
      const PaperRecipe* recipe = recipe_of(c);
      ASSERT_NE(recipe, nullptr) << name;
      EXPECT_EQ(recipe->paper, paper) << name;
      EXPECT_EQ(recipe->steps, c.steps) << name;
      EXPECT_TRUE(c.data.task.starts_with(recipe->task)) << name;
      ++count;
    }
  }
  EXPECT_EQ(count, 48);
}

TEST(PaperRecipes, AttentionIsNoMatterOfTheRecipe) {
  for (const char* name : {"image-universal-M16", "image-universal-gated",
                           "text-nested-16-memory"}) {
    EXPECT_NE(recipe_of(config("ablations/" + std::string(name) + ".json")),
              nullptr)
        << name;
  }
}

TEST(PaperRecipes, WhatIsChangedIsNoPapers) {
  for (const char* name : {"image-softmax-augment", "image-softmax-dropout",
                           "image-softmax-ffn-dropout", "image-softmax-line",
                           "image-softmax-local", "image-softmax-sines",
                           "pathfinder-universal-black"}) {
    EXPECT_EQ(recipe_of(config("ablations/" + std::string(name) + ".json")),
              nullptr)
        << name;
  }
  const train::TrainConfig plain = config("universal/image-universal.json");
  const auto changed = [&](auto&& change) {
    train::TrainConfig c = plain;
    change(c);
    return recipe_of(c);
  };
  EXPECT_EQ(changed([](auto& c) { c.batch = 128; }), nullptr);
  EXPECT_EQ(changed([](auto& c) { c.optimizer.lr = 2e-3; }), nullptr);
  EXPECT_EQ(changed([](auto& c) { c.optimizer.weight_decay = .1; }), nullptr);
  EXPECT_EQ(changed([](auto& c) { c.model.norm = "post"; }), nullptr);
  EXPECT_EQ(changed([](auto& c) { c.model.heads = 4; }), nullptr);
  EXPECT_NE(changed([](auto& c) { c.steps = 10000; }), nullptr);
  EXPECT_NE(changed([](auto& c) {
              c.batch = 32;
              c.accumulate = 2;
            }),
            nullptr);
}

}  // namespace
}  // namespace luna::report
