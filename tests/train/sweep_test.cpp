#include "luna/train/sweep.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "luna/io/text_file.h"

namespace luna::train {
namespace {

namespace fs = std::filesystem;
using Phase = SweepState::Phase;

class SweepOfRuns : public testing::Test {
 protected:
  SweepOfRuns() : folder_(fs::path(testing::TempDir()) / "luna-sweep") {
    fs::remove_all(folder_);
  }
  ~SweepOfRuns() override { fs::remove_all(folder_); }

  std::string config(const std::string& name, const std::string& text = "{}") {
    const fs::path path = folder_ / name;
    fs::create_directories(path.parent_path());
    io::write_text(path, text);
    return path;
  }
  std::vector<std::string> names(const SweepPlan& plan) {
    std::vector<std::string> found;
    for (const SweepRun& run : plan_sweep(plan)) found.push_back(run.name);
    return found;
  }

  fs::path folder_;
};

const char* const kListops =
    R"({"data": {"task": "listops"}, "model": {"attention": "linear"},
        "steps": 100})";
const char* const kImage =
    R"({"data": {"task": "image"}, "model": {"attention": "linear"},
        "steps": 1000})";

TEST_F(SweepOfRuns, NamesRunsByTheConfigsFolderAndName) {
  const std::string a = config("lra/universal/softmax.json", kListops),
                    b = config("lra/nested/softmax.json", kListops);
  EXPECT_EQ(
      names({.configs = {a, b}, .seeds = 2}),
      (std::vector<std::string>{"universal-softmax-s1", "nested-softmax-s1",
                                "universal-softmax-s2", "nested-softmax-s2"}));
  EXPECT_EQ(names({.configs = {a}, .first_seed = 7}),
            std::vector<std::string>{"universal-softmax-s7"})
      << "a config is called the same whatever stands beside it";
}

TEST_F(SweepOfRuns, RefusesTheSameConfigTwice) {
  const std::string a = config("a.json", kListops);
  EXPECT_THROW(plan_sweep({.configs = {a, a}}), c10::ValueError);
}

TEST_F(SweepOfRuns, TakesRunsThatHaveNotStartedToBeAsFastAsTheirLikes) {
  const std::string a = config("a.json", kListops),
                    b = config("b.json", kListops),
                    c = config("c.json", kImage);
  const std::vector<SweepRun> runs =
      plan_sweep({.configs = {a, b, c}, .seeds = 2});  // a b c a b c
  std::vector<SweepState> states(6);
  EXPECT_FALSE(sweep_seconds_left(runs, states, 1).has_value());
  // a, first seed: 60 of 100 steps, 2 a second: 20 s left, its second seed 50
  // s.
  states[0] = {.phase = Phase::kStarted, .step = 60, .steps_per_s = 2.0};
  // c, first seed: finished at 10 a second: the second seed takes 100 s.
  states[2] = {.phase = Phase::kFinished, .step = 1000, .steps_per_s = 10.0};
  // b has no line yet: as its task, listops: 2 x 50 s.
  EXPECT_DOUBLE_EQ(*sweep_seconds_left(runs, states, 1), 20 + 50 + 100 + 100);
  EXPECT_DOUBLE_EQ(*sweep_seconds_left(runs, states, 3), 270.0 / 3);
}

TEST_F(SweepOfRuns, ReadsAStateWhoseLastLineIsBeingWritten) {
  const std::string a = config("a.json", kListops);
  const std::vector<SweepRun> runs =
      plan_sweep({.configs = {a}, .out = folder_ / "runs"});
  EXPECT_EQ(read_sweep_state(runs[0]).phase, Phase::kNotStarted);
  fs::create_directories(runs[0].folder.path());
  io::write_text(runs[0].folder.config(), kListops);
  io::write_text(runs[0].folder.metrics(),
                 R"({"kind":"train","step":5,"loss":1.5,"accuracy":0.25,)"
                 R"("steps_per_s":2,"seconds":3})"
                 "\n{\"kind\":\"train\",\"ste");
  const SweepState state = read_sweep_state(runs[0]);
  EXPECT_EQ(state.phase, Phase::kStarted);
  EXPECT_EQ(state.step, 5);
  EXPECT_DOUBLE_EQ(*state.loss, 1.5);
  EXPECT_DOUBLE_EQ(*state.steps_per_s, 2);
}

TEST_F(SweepOfRuns, FinishedRunsHaveTheirTestsAccuracyIfThereIsOne) {
  const std::string a = config("a.json", kListops);
  const SweepRun run =
      plan_sweep({.configs = {a}, .out = folder_ / "runs"}).at(0);
  fs::create_directories(run.folder.path());
  io::write_text(run.folder.config(), kListops);
  io::write_text(run.folder.metrics(),
                 R"({"kind":"train","step":5,"loss":1.5,"accuracy":0.25})");
  io::write_text(run.folder.summary(),
                 R"({"finished":true,"steps":9,"test_accuracy":0.75})");
  SweepState state = read_sweep_state(run);
  EXPECT_EQ(state.phase, Phase::kFinished);
  EXPECT_EQ(state.step, 9);
  EXPECT_DOUBLE_EQ(state.accuracy.value(), 0.75);
  io::write_text(run.folder.summary(),  // of a score
                 R"({"finished":true,"steps":9,"test_pearson":0.75})");
  EXPECT_FALSE(read_sweep_state(run).accuracy.has_value());
}

}  // namespace
}  // namespace luna::train
