#include "luna/train/open_data.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "luna/io/text_file.h"
#include "support/errors.h"
#include "train/tiny.h"

namespace luna::train {
namespace {

using luna::testing::expect_error;
using luna::testing::fresh_folder;
using luna::testing::holds;

DataConfig small_listops() {
  DataConfig config{.task = "listops", .samples = 20};
  config.settings = {{"min_length", int64_t{4}},
                     {"max_length", int64_t{30}},
                     {"max_depth", int64_t{3}}};
  return config;
}

void expect_same_data(const data::Dataset& a, const data::Dataset& b) {
  ASSERT_EQ(a.size(), b.size());
  for (int64_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(std::vector(a[i].ids.begin(), a[i].ids.end()),
              std::vector(b[i].ids.begin(), b[i].ids.end()));
    EXPECT_EQ(a[i].label, b[i].label);
  }
}

TEST(OpenData, MakesWhatIsGeneratedOnce) {
  const std::string folder = fresh_folder("generated");
  const auto first = open_data(small_listops(), folder);
  EXPECT_EQ(first.train->size(), 20);
  const auto time = std::filesystem::last_write_time(folder + "/train.luna");
  const auto second = open_data(small_listops(), folder);
  expect_same_data(*first.test, *second.test);
  EXPECT_EQ(std::filesystem::last_write_time(folder + "/train.luna"), time);

  DataConfig config = small_listops();
  config.path = folder;  // from --data, beside a run's own folder
  expect_same_data(*first.train, *open_data(config, "").train);
  config.samples = 5;
  EXPECT_EQ(open_data(config, "").train->size(), 5);
}

TEST(OpenData, WritesNothingWithoutAFolder) {
  expect_same_data(*open_data(small_listops(), "").train,
                   *open_data(small_listops(), "").train);
}

TEST(OpenData, RefusesDataOfOtherSettings) {
  const std::string folder = fresh_folder("settings");
  open_data(small_listops(), folder);
  DataConfig config = small_listops();
  config.settings["max_depth"] = int64_t{4};
  expect_error<c10::ValueError>([&] { open_data(config, folder); },
                                {folder, "max_depth", "4", "3"});
  config = small_listops();
  config.settings["max_args"] = int64_t{3};  // 10 where nothing is said
  expect_error<c10::ValueError>([&] { open_data(config, folder); },
                                {folder, "max_args", "3", "10"});
}

TEST(OpenData, RefusesDataOfAnotherTask) {
  DataConfig config = small_listops();
  config.path = fresh_folder("task");
  open_data(config, "");
  config.task = "text";
  expect_error<c10::ValueError>([&] { open_data(config, ""); },
                                {config.path, "text", "listops"});
}

TEST(OpenData, SaysHowToGetWhatIsNotThere) {
  const std::vector<std::string> parts = {"data.path", "luna data pack image",
                                          "--out DIR", "CIFAR-10"};
  expect_error<c10::Error>([] { open_data({.task = "image"}, ""); }, parts);
  const std::string note = plan_data({.task = "image"}, "").note;
  for (const auto& part : parts) EXPECT_TRUE(holds(note, part)) << note;
  DataConfig config{.task = "image", .path = fresh_folder("missing")};
  expect_error<c10::Error>([&] { open_data(config, ""); },
                           {config.path, "where nothing is"});
}

/// What is planned without data bounds what is then made.
TEST(PlanData, KnowsWhatWillBeMade) {
  const DataConfig needles{
      .task = "needles", .samples = 4, .settings = {{"length", int64_t{17}}}};
  const DataConfig pictures{.task = "pathfinder",
                            .samples = 2,
                            .settings = {{"preset", std::string("64-easy")}}};
  for (const DataConfig& config : {small_listops(), needles, pictures}) {
    SCOPED_TRACE(config.task);
    const std::string folder = fresh_folder("plan-" + config.task);
    const DataPlan plan = plan_data(config, folder);
    EXPECT_FALSE(std::filesystem::exists(folder));
    EXPECT_TRUE(holds(plan.note, folder)) << plan.note;
    const data::Splits made = open_data(config, folder);
    EXPECT_EQ(plan.facts.samples, sizes(made));
    EXPECT_EQ(plan.facts.info.vocabulary, made.train->info().vocabulary);
    EXPECT_EQ(plan.facts.info.height, made.train->info().height);
    EXPECT_GE(plan.facts.longest, made.train->longest());
    EXPECT_LE(plan.facts.longest, made.train->longest() + 10);

    const DataPlan packed = plan_data(config, folder);
    EXPECT_EQ(packed.note, "");
    EXPECT_EQ(packed.facts.samples, sizes(made));
  }
}

TEST(Shortfall, ComparesWithConfigAndTask) {
  DataConfig config{.task = "needles", .samples = 2000};
  EXPECT_EQ(shortfall(config, {2000, 1000, 1000}), "");  // all that it has
  EXPECT_EQ(shortfall(config, {1999, 1000, 7}),
            "data: fewer samples than data.samples = 2000 asks for: train "
            "1999 of 2000, test 7 of 1000");
  config.samples = 0;
  EXPECT_EQ(shortfall(config, {2000, 1000, 1000}),
            "data: fewer samples than needles has: train 2000 of 20000");
  EXPECT_EQ(shortfall({.task = "unheard of"}, {1, 1, 1}), "");
}

}  // namespace
}  // namespace luna::train
