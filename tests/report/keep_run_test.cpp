#include "luna/report/keep_run.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <luna/io/safetensors.h>

#include <sstream>

#include "luna/report/run_report.h"
#include "report/run_folders.h"
#include "support/errors.h"

namespace luna::report::testing {
namespace {

/// A feature map of one channel, and weights that nobody draws.
io::NamedTensors weights(double slope) {
  const std::string map = "layers.0.attention.feature_map";
  return {{"embedding.tokens.weight", at::ones({1000, 8})},
          {map + ".projection", at::ones({2, 4})},
          {map + ".projection_bias", at::zeros({2})},
          {map + ".hidden_weight", at::ones({1, 3})},
          {map + ".hidden_bias", at::zeros({1, 3})},
          {map + ".output_weight", at::full({1, 3}, slope)},
          {map + ".output_bias", at::zeros({1})}};
}

std::string write_long_run(const std::string& folder) {
  write_run(folder, {});
  std::string metrics = io::read_text(folder + "/metrics.jsonl");
  for (int step = 500; step < 1500; ++step) {
    metrics +=
        Json{{"kind", "train"}, {"step", step}, {"loss", 1.0}}.dump() + "\n";
  }
  metrics += Json{{"kind", "skipped"}, {"step", 700}}.dump() + "\n{\"kind\": ";
  io::write_text(folder + "/metrics.jsonl", metrics);
  io::write_text(folder + "/samples.json", R"({"samples": []})");
  io::write_safetensors(folder + "/start.safetensors", weights(1));
  fs::create_directories(folder + "/best");
  io::write_safetensors(folder + "/best/model.safetensors", weights(2));
  fs::create_directories(folder + "/checkpoints/step-400");
  io::write_text(folder + "/checkpoints/step-400/state.json", "{}");
  return folder;
}

TEST(KeepRun, TheReportOfWhatIsKeptSaysTheSame) {
  const TemporaryFolder folder;
  const std::string whole = write_long_run(folder / "run");
  const std::string small = folder / "kept/run";
  keep_run(whole, small);
  const report::Run before = read_run(whole), after = read_run(small);
  EXPECT_EQ(results_table(make_report({after})).markdown(),
            results_table(make_report({before})).markdown());
  ASSERT_EQ(after.psi.size(), 1u);
  EXPECT_EQ(after.psi[0].now, before.psi[0].now);
  EXPECT_EQ(after.psi[0].start, before.psi[0].start);
  EXPECT_EQ(after.validation.size(), before.validation.size());
  EXPECT_EQ(after.skipped_steps, 1);
  EXPECT_EQ(after.seconds, before.seconds);
}

TEST(KeepRun, LeavesOutSamplesCheckpointsAndMostOfTheRest) {
  const TemporaryFolder folder;
  const std::string whole = write_long_run(folder / "run");
  const std::string small = folder / "run-small";
  keep_run(whole, small);
  EXPECT_FALSE(fs::exists(small + "/samples.json"));
  EXPECT_FALSE(fs::exists(small + "/checkpoints"));
  const auto kept = io::Safetensors::open(small + "/best/model.safetensors");
  EXPECT_EQ(kept.entries().size(), 6u);
  EXPECT_FALSE(kept.contains("embedding.tokens.weight"));
  const report::Run run = read_run(small);
  EXPECT_LE(run.train.size(), 100u);
  EXPECT_GE(run.train.size(), 50u);
  EXPECT_EQ(run.train.rbegin()->first, 1499);  // the last one stays
  for (const std::string& note : run.notes) {
    EXPECT_EQ(note.find("torn"), std::string::npos) << note;
  }
}

TEST(KeepRun, SaysNothingOfThisMachinesFolders) {
  const TemporaryFolder folder;
  const std::string whole = write_run(folder / "run", {});
  const auto kept_path = [&](const std::string& path) {
    Json config = Json::parse(io::read_text(whole + "/config.json"));
    config["data"]["path"] = path;
    io::write_text(whole + "/config.json", config.dump());
    keep_run(whole, folder / "kept");
    const Json kept = Json::parse(io::read_text(folder / "kept/config.json"));
    config["data"].erase("path");
    Json rest = kept;
    rest["data"].erase("path");
    EXPECT_EQ(rest, config);
    return kept["data"]["path"].get<std::string>();
  };
  EXPECT_EQ(kept_path("/mnt/disk/data/image"), "image");
  EXPECT_EQ(kept_path("/mnt/disk/data/image/"), "image");
  EXPECT_EQ(kept_path("data/image"), "data/image");
}

TEST(KeepRun, ReplacesWhatWasKeptBefore) {
  const TemporaryFolder folder;
  RunRecipe recipe;
  keep_run(write_long_run(folder / "run"), folder / "kept");
  recipe.test_accuracy = 0.75;
  keep_run(write_run(folder / "other", recipe), folder / "kept");
  EXPECT_EQ(read_run(folder / "kept").test_accuracy, 0.75);
  EXPECT_FALSE(fs::exists(folder / "kept/start.safetensors"));
}

TEST(KeepRun, RefusesWhatIsNoRunAndTheRunItself) {
  const TemporaryFolder folder;
  fs::create_directories(folder / "empty");
  luna::testing::expect_error<c10::ValueError>(
      [&] { keep_run(folder / "empty", folder / "kept"); },
      {"empty", "expected a run folder of luna train"});
  EXPECT_FALSE(fs::exists(folder / "kept"));
  const std::string run = write_run(folder / "run", {});
  luna::testing::expect_error<c10::ValueError>(
      [&] { keep_run(run, folder / "run/."); }, {"does not hold the run"});
  luna::testing::expect_error<c10::ValueError>(
      [&] { keep_run(run, folder.path()); }, {"does not hold the run"});
  EXPECT_TRUE(fs::exists(run + "/metrics.jsonl"));
}

TEST(KeepRun, DoesNotReplaceARunThatWasTrained) {
  const TemporaryFolder folder;
  const std::string whole = write_long_run(folder / "run");
  luna::testing::expect_error<c10::ValueError>(
      [&] { keep_run(write_run(folder / "small", {}), whole); },
      {"checkpoints", "would be lost"});
  fs::remove_all(whole + "/checkpoints");
  luna::testing::expect_error<c10::ValueError>(
      [&] { keep_run(folder / "small", whole); }, {"samples.json"});
  EXPECT_TRUE(fs::exists(whole + "/best/model.safetensors"));
}

}  // namespace
}  // namespace luna::report::testing
