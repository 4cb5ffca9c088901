#include "luna/train/trainer.h"

#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "luna/io/faults.h"
#include "luna/io/file_lock.h"
#include "luna/io/safetensors.h"
#include "luna/io/text_file.h"
#include "luna/train/read_config.h"
#include "ops/fixed_order.h"
#include "support/errors.h"
#include "train/tiny.h"

namespace luna::train {
namespace {

using luna::testing::bytes_of;
using luna::testing::expect_error;
using luna::testing::fresh_folder;
using luna::testing::metrics_without_times;
using luna::testing::tiny_config;
using luna::testing::tiny_data;
using luna::testing::tiny_options;
using luna::testing::tiny_splits;
using luna::testing::TinyModel;
using End = TrainResult::End;
using Json = nlohmann::ordered_json;

std::vector<Json> lines(const std::string& folder, const std::string& kind) {
  std::istringstream text(bytes_of(folder + "/metrics.jsonl"));
  std::vector<Json> found;
  for (std::string line; std::getline(text, line);) {
    const Json json = Json::parse(line);
    if (json["kind"] == kind) found.push_back(json);
  }
  return found;
}

std::vector<int64_t> steps_of(const std::vector<Json>& lines) {
  std::vector<int64_t> steps;
  for (const Json& line : lines) steps.push_back(line["step"]);
  return steps;
}

TEST(Trainer, AddsInAnyOrderWhereItNeedNotBeRepeatable) {
  for (const bool repeatable : {true, false}) {
    TrainConfig config = tiny_config();
    config.repeatable = repeatable;
    int64_t asked = 0;
    const auto look = [&] {
      ++asked;
      EXPECT_EQ(ops::AnyOrder::is_allowed(), !repeatable);
      return false;
    };
    train(config, tiny_splits(), tiny_options(fresh_folder("order")),
          {.stop = look});
    EXPECT_GT(asked, 0);
    EXPECT_FALSE(ops::AnyOrder::is_allowed());
  }
}

TEST(Trainer, LearnsTheTinyTask) {
  const std::string folder = fresh_folder("learns");
  TrainConfig config = tiny_config();
  config.steps = 60;
  config.eval_every = 20;
  const TrainResult result = train(config, tiny_splits(), tiny_options(folder));
  EXPECT_EQ(result.end, End::kFinished);
  EXPECT_EQ(result.step, 60);
  ASSERT_TRUE(result.test);
  EXPECT_EQ(result.test->accuracy, 1.0);
  EXPECT_EQ(result.test->samples, 30);
  const auto logged = lines(folder, "train");
  EXPECT_LT(logged.back()["loss"], logged.front()["loss"]);
}

TEST(Trainer, WritesTheFolderThatReportsRead) {
  const std::string folder = fresh_folder("folder");
  const TrainResult result =
      train(tiny_config(), tiny_splits(), tiny_options(folder));
  EXPECT_EQ(steps_of(lines(folder, "train")),
            (std::vector<int64_t>{2, 4, 6, 8, 10, 12}));
  EXPECT_EQ(steps_of(lines(folder, "validation")),
            (std::vector<int64_t>{4, 8, 12}));
  for (const char* key :
       {"loss", "accuracy", "lr", "tokens_per_s", "steps_per_s", "seconds"}) {
    EXPECT_TRUE(lines(folder, "train").front()[key].is_number()) << key;
  }
  ASSERT_EQ(lines(folder, "test").size(), 1u);
  EXPECT_EQ(lines(folder, "test")[0]["accuracy"], result.test->accuracy);

  const Json summary = Json::parse(bytes_of(folder + "/summary.json"));
  EXPECT_EQ(summary["name"], "tiny");
  EXPECT_EQ(summary["task"], "tiny");
  EXPECT_EQ(summary["finished"], true);
  EXPECT_EQ(summary["steps"], 12);
  // table 10 x 6, hidden 6 x 6 + 6, head 2 x 6 + 2
  EXPECT_EQ(summary["parameters"], 60 + 42 + 14);
  EXPECT_EQ(summary["best_step"], result.best.step);
  EXPECT_EQ(summary["test_accuracy"], result.test->accuracy);
  EXPECT_GT(summary["peak_memory_bytes"], 1 << 20);
  EXPECT_GE(summary["load_share"], 0.0);
  EXPECT_LE(summary["load_share"], 1.0);
  EXPECT_GT(summary["tokens_per_s"], summary["steps_per_s"]);

  const Json samples = Json::parse(bytes_of(folder + "/samples.json"));
  EXPECT_EQ(samples["classes"].size(), 2u);
  ASSERT_EQ(samples["samples"].size(), 8u);
  for (const Json& sample : samples["samples"]) {
    EXPECT_EQ(sample["predicted"],
              sample["probabilities"][0] > sample["probabilities"][1] ? 0 : 1);
  }
  EXPECT_EQ(read_train_config(folder + "/best/config.json").steps, 12);
  EXPECT_TRUE(io::Safetensors::open(folder + "/best/model.safetensors")
                  .contains("hidden.weight"));
  EXPECT_TRUE(std::filesystem::exists(folder + "/start.safetensors"));
}

TEST(Trainer, KeepsTheLastCheckpointsOnly) {
  const std::string folder = fresh_folder("keeps");
  TrainConfig config = tiny_config();
  config.keep_checkpoints = 3;
  train(config, tiny_splits(), tiny_options(folder));
  EXPECT_EQ(RunFolder(folder).steps(), (std::vector<int64_t>{12, 9, 6}));
}

TEST(Trainer, SameBitsTwiceAndOthersForAnotherSeed) {
  const std::string a = fresh_folder("bits-a"), b = fresh_folder("bits-b"),
                    c = fresh_folder("bits-c");
  TrainConfig config = tiny_config();
  train(config, tiny_splits(), tiny_options(a));
  at::manual_seed(123);
  train(config, tiny_splits(), tiny_options(b));
  config.seed = 2;
  train(config, tiny_splits(), tiny_options(c));
  const auto weights = [](const std::string& folder) {
    return bytes_of(RunFolder(folder).checkpoint(12) + "/model.safetensors");
  };
  EXPECT_EQ(weights(a), weights(b));
  EXPECT_EQ(metrics_without_times(a), metrics_without_times(b));
  EXPECT_NE(weights(a), weights(c));
}

TEST(Trainer, TestsTheBestValidation) {
  const std::string folder = fresh_folder("best");
  TrainConfig config = tiny_config();
  config.eval_every = 1;
  config.optimizer.lr = 0.5;  // so much that it jumps about
  config.steps = 20;
  const TrainResult result = train(config, tiny_splits(), tiny_options(folder));
  double best = -1, loss = 0;
  int64_t step = 0;
  for (const Json& line : lines(folder, "validation")) {
    if (line["accuracy"] > best ||
        (line["accuracy"] == best && line["loss"] < loss)) {
      best = line["accuracy"];
      loss = line["loss"];
      step = line["step"];
    }
  }
  EXPECT_EQ(result.best.step, step);
  EXPECT_EQ(result.best.accuracy, best);
  EXPECT_EQ(lines(folder, "test")[0]["step"], step);
}

TEST(Trainer, StopsWhenPatienceEnds) {
  const std::string folder = fresh_folder("patience");
  TrainConfig config = tiny_config();
  config.optimizer.lr = 0.0;  // the first validation stays the best
  config.steps = 100;
  config.patience = 3;
  const TrainResult result = train(config, tiny_splits(), tiny_options(folder));
  EXPECT_EQ(result.end, End::kStoppedEarly);
  EXPECT_EQ(result.step, 16);
  EXPECT_EQ(result.best.step, 4);
  EXPECT_TRUE(result.test);
}

TEST(Trainer, ConfigGoesThroughItsFile) {
  const std::string folder = fresh_folder("config");
  TrainConfig config = tiny_config();
  config.model.attention_options["M"] = int64_t{4};
  config.data.settings["max_depth"] = int64_t{3};
  config.schedule.floor = 0.1;
  io::write_text(folder + ".json", config_text(config));
  EXPECT_EQ(config_text(read_train_config(folder + ".json")),
            config_text(config));
  EXPECT_EQ(
      read_train_config(folder + ".json", {"optimizer.lr=0.25"}).optimizer.lr,
      0.25);
}

TEST(Trainer, AFinishedRunGoesOnToMoreSteps) {
  TrainConfig config = tiny_config();
  config.schedule.name = "constant";
  const std::string whole = fresh_folder("whole");
  train(config, tiny_splits(), tiny_options(whole));

  const std::string longer = fresh_folder("longer");
  config.steps = 8;
  train(config, tiny_splits(), tiny_options(longer));
  const TrainConfig more = read_resumed_config(RunFolder(longer), {"steps=12"});
  TrainOptions options = tiny_options(longer);
  options.resume = true;
  train(more, tiny_splits(), options);
  EXPECT_EQ(metrics_without_times(longer), metrics_without_times(whole));
  const std::string last = "/checkpoints/step-00000012/model.safetensors";
  EXPECT_EQ(bytes_of(longer + last), bytes_of(whole + last));
  EXPECT_EQ(bytes_of(longer + "/config.json"),
            bytes_of(whole + "/config.json"));
  EXPECT_FALSE(std::filesystem::exists(RunFolder(longer).lock()));
}

TEST(Trainer, RemovesCheckpointsThatAKilledRunLeft) {
  const std::string folder = fresh_folder("left");
  train(tiny_config(), tiny_splits(), tiny_options(folder));
  const RunFolder run(folder);
  ASSERT_EQ(run.steps(), (std::vector<int64_t>{12, 9}));
  std::filesystem::copy(run.checkpoint(9), run.checkpoint(3));
  TrainOptions options = tiny_options(folder);
  options.resume = true;
  train(tiny_config(), tiny_splits(), options);
  EXPECT_EQ(run.steps(), (std::vector<int64_t>{12, 9}));
}

TEST(Trainer, RefusesToGoOnAsAnotherRun) {
  const std::string folder = fresh_folder("as-another");
  TrainConfig config = tiny_config();
  train(config, tiny_splits(), tiny_options(folder));
  const auto refuses = [&](const std::vector<std::string>& set,
                           const std::vector<std::string>& parts) {
    expect_error<c10::ValueError>(
        [&] { read_resumed_config(RunFolder(folder), set); }, parts);
  };
  refuses({"optimizer.lr=1"}, {"--set optimizer.lr=1", "steps, log_every",
                               "got optimizer.lr", "--out"});
  // The cosine's end was fixed when it began.
  refuses({"steps=24"}, {"--set steps=24", "cosine", "--out"});
  config.schedule.name = "constant";
  io::write_text(folder + "/config.json", config_text(config));
  refuses({"steps=6"}, {"at least the 12 steps", "got 6"});
  EXPECT_EQ(read_resumed_config(RunFolder(folder), {"patience=3"}).patience, 3);
}

TEST(Trainer, RefusesAFolderThatHoldsARun) {
  const std::string folder = fresh_folder("again");
  train(tiny_config(), tiny_splits(), tiny_options(folder));
  expect_error<c10::ValueError>(
      [&] { train(tiny_config(), tiny_splits(), tiny_options(folder)); },
      {folder, "--resume"});
}

TEST(Trainer, RefusesARunThatIsNotThere) {
  TrainOptions options = tiny_options(fresh_folder("none"));
  options.resume = true;
  expect_error<c10::ValueError>(
      [&] { train(tiny_config(), tiny_splits(), options); }, {"config.json"});
  EXPECT_FALSE(std::filesystem::exists(options.folder));
}

TEST(Trainer, RefusesASecondProcessOnOneFolder) {
  const std::string folder = fresh_folder("locked");
  std::filesystem::create_directories(folder);
  const io::FileLock lock(RunFolder(folder).lock());
  expect_error<c10::Error>(
      [&] { train(tiny_config(), tiny_splits(), tiny_options(folder)); },
      {std::to_string(getpid())});
}

TEST(Trainer, RefusesEmptySplits) {
  Splits splits = tiny_splits();
  splits.validation = tiny_data(0, 1);
  expect_error<c10::ValueError>(
      [&] {
        train(tiny_config(), splits, tiny_options(fresh_folder("empty")));
      },
      {"validation"});
}

// --- numbers that are not finite -------------------------------------------

/// A TinyModel whose forward passes `first` to `last` (from 0) give NaN.
TrainOptions disturbed(const std::string& folder, int64_t first, int64_t last) {
  TrainOptions options = tiny_options(folder);
  options.make_model = [first, last] {
    const auto model = std::make_shared<TinyModel>();
    model->disturb = [=, count = int64_t{0}](const at::Tensor& x) mutable {
      const bool bad = first <= count && count <= last;
      ++count;
      return bad ? x * std::numeric_limits<double>::quiet_NaN() : x;
    };
    return model;
  };
  return options;
}

TEST(Trainer, SkipsAndCountsBadSteps) {
  const std::string folder = fresh_folder("skips");
  // Two passes a step: steps 3 to 5 are bad.
  train(tiny_config(), tiny_splits(), disturbed(folder, 5, 8));
  EXPECT_EQ(steps_of(lines(folder, "skipped")),
            (std::vector<int64_t>{3, 4, 5}));
  EXPECT_EQ(Json::parse(bytes_of(folder + "/summary.json"))["skipped"], 3);
  for (const Json& line : lines(folder, "train")) {
    EXPECT_EQ(line["loss"].is_null(), line["step"] == 4) << line;
  }
}

TEST(Trainer, StopsAfterFiveBadStepsInARow) {
  const std::string folder = fresh_folder("stops");
  expect_error<c10::Error>(
      [&] { train(tiny_config(), tiny_splits(), disturbed(folder, 8, 1000)); },
      {"step 9", "loss", "hidden", "samples", "step-00000006"});
  EXPECT_EQ(RunFolder(folder).steps(), (std::vector<int64_t>{6, 3}));
  const auto stopped = lines(folder, "stopped");
  ASSERT_EQ(stopped.size(), 1u);
  EXPECT_EQ(stopped[0]["step"], 9);
  EXPECT_EQ(stopped[0]["batch"].size(), 8u);
  const auto file = io::Safetensors::open(RunFolder(folder).checkpoint(6) +
                                          "/model.safetensors");
  for (const io::TensorEntry& entry : file.entries()) {
    EXPECT_TRUE(file.tensor(entry.name).isfinite().all().item<bool>());
  }
}

}  // namespace
}  // namespace luna::train
