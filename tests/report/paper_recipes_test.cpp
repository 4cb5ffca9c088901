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
      EXPECT_EQ(recipe->config.steps, c.steps) << name;
      EXPECT_TRUE(c.data.task.starts_with(recipe->config.data.task)) << name;
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
}

/// The recipe of a config with assignments put over it.
const PaperRecipe* changed(
    const std::vector<std::string>& assignments,
    const std::string& path = "universal/image-softmax") {
  return recipe_of(
      train::read_train_config(std::string(std::getenv("LUNA_SOURCE_DIR")) +
                                   "/configs/lra/" + path + ".json",
                               assignments));
}

TEST(PaperRecipes, OneOtherValueMakesAnotherRecipe) {
  for (const char* assignment : {"batch=128",
                                 "optimizer.lr=2e-3",
                                 "optimizer.weight_decay=.1",
                                 "optimizer.name=adam",
                                 "optimizer.beta2=.999",
                                 "optimizer.feature_map_lr=.1",
                                 "optimizer.clip_each=.1",
                                 "schedule.name=constant",
                                 "schedule.warmup=0",
                                 "schedule.floor=0",
                                 "clip=0",
                                 "label_smoothing=.1",
                                 "average=2",
                                 "best_by=loss",
                                 "model.norm=post",
                                 "model.heads=4",
                                 "model.layers=3",
                                 "model.pooling=cls",
                                 "model.head_hidden=64",
                                 "model.init=xavier",
                                 "model.activation=relu",
                                 "model.embedding_norm=true",
                                 "model.attention_dropout=0",
                                 "model.activation_dropout=.1",
                                 "model.positions=none",
                                 "model.local=5",
                                 "model.black=padding",
                                 "data.samples=1000",
                                 "data.max_length=512",
                                 "data.augment=true"}) {
    EXPECT_EQ(changed({assignment}), nullptr) << assignment;
  }
}

TEST(PaperRecipes, HowFarAndHowItIsComputedIsFree) {
  for (const char* assignment :
       {"steps=10000", "seed=7", "patience=3", "eval_every=50",
        "checkpoint_every=50", "log_every=5", "autocast=bf16", "pack=off",
        "repeatable=false", "model.max_positions=2000"}) {
    EXPECT_NE(changed({assignment}), nullptr) << assignment;
  }
  EXPECT_NE(changed({"batch=32", "accumulate=2"}), nullptr);
  // Universal attention has no map to drop from.
  EXPECT_NE(changed({"model.attention_dropout=0"}, "universal/image-universal"),
            nullptr);
}

TEST(PaperRecipes, MemoryMayBePooledWhereThePaperPoolsAToken) {
  EXPECT_NE(changed({"model.pooling=memory"}, "nested/listops-nested-16"),
            nullptr);
  EXPECT_EQ(changed({"model.pooling=mean"}, "nested/listops-nested-16"),
            nullptr);
  EXPECT_EQ(changed({"model.pooling=memory"}, "nested/pathfinder-nested-16"),
            nullptr);
}

}  // namespace
}  // namespace luna::report
