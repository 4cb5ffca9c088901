#include "luna/report/run.h"

#include <gtest/gtest.h>

#include <fstream>

#include "report/run_folders.h"
#include "support/errors.h"

namespace luna::report::testing {
namespace {

bool has_note(const Run& run, const std::string& part) {
  for (const std::string& note : run.notes) {
    if (note.find(part) != std::string::npos) return true;
  }
  return false;
}

TEST(Run, ReadsWhatTrainingWrote) {
  const TemporaryFolder folder;
  RunRecipe recipe;
  recipe.attention = "softmax";
  recipe.seed = 7;
  recipe.test_accuracy = 0.625;
  const report::Run run = read_run(write_run(folder / "a", recipe));
  EXPECT_EQ(run.name, "softmax-7");
  EXPECT_EQ(run.task, "image");
  EXPECT_EQ(run.title, "softmax");
  EXPECT_EQ(run.seed, 7);
  EXPECT_TRUE(run.finished);
  EXPECT_EQ(run.accuracy(), 0.625);
  EXPECT_EQ(run.length, 1024);
  EXPECT_EQ(run.machine, "2 threads of Test CPU (avx2)");
  ASSERT_EQ(run.train.size(), 4u);
  EXPECT_EQ(run.train.at(200).loss, 1.5);
  EXPECT_DOUBLE_EQ(run.validation.at(300).accuracy.value(), 0.3);
  EXPECT_TRUE(has_note(run, "no samples.json"));
}

TEST(Run, NamesTheGpuItRanOn) {
  const TemporaryFolder folder;
  const std::string path = write_run(folder / "a", {});
  Json summary = Json::parse(io::read_text(path + "/summary.json"));
  summary["machine"]["cuda_devices"] = {"Test GPU"};
  summary["device"] = "cuda:0";
  io::write_text(path + "/summary.json", summary.dump());
  EXPECT_EQ(read_run(path).machine, "Test GPU beside Test CPU");
}

TEST(Run, UnfinishedOnesShowWhatTheyHave) {
  const TemporaryFolder folder;
  const std::string path = write_run(folder / "a", {});
  fs::remove(path + "/summary.json");
  std::string metrics = io::read_text(path + "/metrics.jsonl");
  metrics.resize(metrics.rfind("{\"kind\":\"test\"") + 9);
  io::write_text(path + "/metrics.jsonl", metrics);
  const report::Run run = read_run(path);
  EXPECT_FALSE(run.finished);
  EXPECT_EQ(run.title, "universal");
  EXPECT_EQ(run.steps, 400);
  EXPECT_EQ(run.best_step, 400);
  EXPECT_DOUBLE_EQ(run.accuracy().value(), 0.4);  // of the best validation
  EXPECT_EQ(run.steps_per_s, 2);
  EXPECT_TRUE(has_note(run, "not finished: 400 of 400 steps"));
  EXPECT_TRUE(has_note(run, "the last line of metrics.jsonl is torn"));
  EXPECT_TRUE(has_note(run, "no summary.json"));
  EXPECT_TRUE(has_note(run, "no weights"));
}

TEST(Run, BrokenFilesCostANoteNotTheReport) {
  const TemporaryFolder folder;
  const std::string path = write_run(folder / "a", {});
  io::write_text(path + "/config.json", "{\"steps\": \"many\"}");
  io::write_text(path + "/samples.json", "{\"samples\": [{\"label\": 1}]}");
  fs::create_directories(path + "/best");
  io::write_text(path + "/best/model.safetensors", "not weights");
  const report::Run run = read_run(path);
  EXPECT_TRUE(run.finished);
  EXPECT_EQ(run.title, "universal");  // the summary says it too
  EXPECT_TRUE(has_note(run, "config.json left out: "));
  EXPECT_TRUE(has_note(run, "samples.json left out: "));
  EXPECT_TRUE(has_note(run, "best/model.safetensors left out: "));
}

TEST(Run, TheLastOfRepeatedLinesCounts) {
  const TemporaryFolder folder;
  const std::string path = write_run(folder / "a", {});
  std::ofstream(path + "/metrics.jsonl", std::ios::app)
      << "{\"kind\":\"train\",\"step\":200,\"loss\":9}\n"
      << "{\"kind\":\"skipped\",\"step\":201,\"why\":\"loss\"}\n";
  const report::Run run = read_run(path);
  EXPECT_EQ(run.train.size(), 4u);
  EXPECT_EQ(run.train.at(200).loss, 9);
  EXPECT_EQ(run.skipped_steps, 1);
}

TEST(Run, ReadsSamples) {
  const TemporaryFolder folder;
  const std::string path = write_run(folder / "a", {});
  io::write_text(path + "/samples.json", R"({
    "classes": ["cat", "dog"],
    "samples": [
      {"kind": "picture", "pixels": "AP8A/wCA", "height": 2, "width": 3,
       "label": 0, "predicted": 1, "probabilities": [0.25, 0.75]},
      {"kind": "pair", "text": "a", "second": "b", "label": 5,
       "predicted": 5}]})");
  const report::Run run = read_run(path);
  ASSERT_EQ(run.predictions.size(), 2u);
  EXPECT_EQ(run.predictions[0].pixels,
            (std::vector<uint8_t>{0, 255, 0, 255, 0, 128}));
  EXPECT_FALSE(run.predictions[0].right());
  EXPECT_EQ(run.class_name(run.predictions[0].predicted), "dog");
  EXPECT_EQ(run.predictions[1].second, "b");
  EXPECT_EQ(run.class_name(run.predictions[1].label), "5");
}

TEST(FindRuns, LooksIntoFoldersOfRuns) {
  const TemporaryFolder folder;
  write_run(folder / "lra/image/b", {});
  write_run(folder / "lra/image/a", {});
  write_run(folder / "lra/text", {});
  fs::create_directories(folder / "lra/text/best");
  io::write_text(folder / "lra/text/best/config.json", "{}");
  io::write_text(folder / "report.html", "");
  const std::vector<std::string> all = {
      folder / "lra/image/a", folder / "lra/image/b", folder / "lra/text"};
  EXPECT_EQ(find_runs({folder.path()}), all);
  // As a shell gives them, each run once.
  EXPECT_EQ(
      find_runs({folder / "lra/image", folder / "lra", folder / "report.html"}),
      all);
}

TEST(FindRuns, RefusesWhatHoldsNone) {
  const TemporaryFolder folder;
  using luna::testing::expect_error;
  expect_error<c10::ValueError>([&] { find_runs({folder.path()}); },
                                {folder.path(), "not a run folder"});
  expect_error<c10::ValueError>([&] { find_runs({folder / "nothing"}); },
                                {folder / "nothing", "no such folder"});
  io::write_text(folder / "file", "");
  expect_error<c10::ValueError>([&] { find_runs({folder / "file"}); },
                                {folder / "file", "a file"});
  // The weights' folder has a config too, but it is not the run's.
  fs::create_directories(folder / "best");
  io::write_text(folder / "best/config.json", "{}");
  io::write_text(folder / "best/model.safetensors", "");
  expect_error<c10::ValueError>([&] { find_runs({folder / "best"}); },
                                {"not a run folder"});
  fs::create_directories(folder / "run/best");
  write_run(folder / "run", {});
  io::write_text(folder / "run/best/config.json", "{}");
  io::write_text(folder / "run/best/model.safetensors", "");
  expect_error<c10::ValueError>([&] { find_runs({folder / "run/best/"}); },
                                {"did you mean " + folder / "run" + "?"});
}

}  // namespace
}  // namespace luna::report::testing
