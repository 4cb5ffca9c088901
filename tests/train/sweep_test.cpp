#include "luna/train/sweep.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "luna/io/text_file.h"
#include "support/temporary_folder.h"

namespace luna::train {
namespace {

namespace fs = std::filesystem;
using Phase = SweepState::Phase;

class SweepOfRuns : public luna::testing::FolderTest {
 protected:
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
      names({.configs = {{a, {1, 2}}, {b, {1, 2}}}}),
      (std::vector<std::string>{"universal-softmax-s1", "nested-softmax-s1",
                                "universal-softmax-s2", "nested-softmax-s2"}));
  EXPECT_EQ(names({.configs = {{a, {7, 7}}}}),
            std::vector<std::string>{"universal-softmax-s7"})
      << "a config is called the same whatever stands beside it";
}

TEST_F(SweepOfRuns, TrainsEachConfigWithItsOwnSeedsSeedBySeed) {
  const std::string a = config("lra/a.json", kListops),
                    b = config("lra/b.json", kListops);
  EXPECT_EQ(names({.configs = {{a, {2, 3}}, {b, {1, 2}}}}),
            (std::vector<std::string>{"lra-b-s1", "lra-a-s2", "lra-b-s2",
                                      "lra-a-s3"}));
}

TEST_F(SweepOfRuns, PutsItsAssignmentsOverThoseOfAConfig) {
  const std::string a = config("a.json", kListops);
  const SweepRun run = plan_sweep({.configs = {{a, {}, {"steps=7", "batch=3"}}},
                                   .overrides = {"batch=4"}})
                           .at(0);
  EXPECT_EQ(run.config.steps, 7);
  EXPECT_EQ(run.config.batch, 4);
}

TEST_F(SweepOfRuns, RefusesTheSameConfigTwice) {
  const std::string a = config("a.json", kListops);
  EXPECT_THROW(plan_sweep({.configs = {{a}, {a}}}), c10::ValueError);
}

TEST_F(SweepOfRuns, TakesRunsThatHaveNotStartedToBeAsFastAsTheirLikes) {
  const std::string a = config("a.json", kListops),
                    b = config("b.json", kListops),
                    c = config("c.json", kImage);
  const std::vector<SweepRun> runs =
      plan_sweep({.configs = {{a, {1, 2}}, {b, {1, 2}}, {c, {1, 2}}}});
  // a b c a b c
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
  std::vector<SweepRun> kept = runs;  // of another machine
  kept[2].kept = true;
  EXPECT_DOUBLE_EQ(*sweep_seconds_left(kept, states, 1), 20 + 50 + 100 + 500);
}

TEST_F(SweepOfRuns, ReadsAStateWhoseLastLineIsBeingWritten) {
  const std::string a = config("a.json", kListops);
  const std::vector<SweepRun> runs =
      plan_sweep({.configs = {{a}}, .out = folder_ / "runs"});
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
      plan_sweep({.configs = {{a}}, .out = folder_ / "runs"}).at(0);
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

/// A run of `text` in the folder `kept`, with or without an end.
void keep(const fs::path& kept, const std::string& name,
          const std::string& text, bool finished = true) {
  fs::create_directories(kept / name);
  io::write_text(kept / name / "config.json", text);
  io::write_text(kept / name / "summary.json",
                 finished ? R"({"finished": true, "steps": 90})" : "{}");
  io::write_text(kept / name / "metrics.jsonl", "");
}

TEST_F(SweepOfRuns, LeavesOutWhatHasBeenKept) {
  const std::string a = config("lra/a.json", kListops);
  const fs::path kept = folder_ / "kept";
  const auto text = [](const std::string& more) {
    return R"({"data": {"task": "listops", "path": "elsewhere"},
               "model": {"attention": "linear", "max_positions": 9},
               "name": "another", "steps": 100, )" +
           more + "}";
  };
  // Neither the name, nor the place of the data, nor what ends a run after its
  // best weights makes another result.
  keep(kept, "one", text(R"("seed": 1, "patience": 5, "repeatable": false)"));
  keep(kept, "two", text(R"("seed": 2)"), /*finished=*/false);
  keep(kept, "three", text(R"("seed": 3, "batch": 7)"));
  const auto runs = plan_sweep(
      {.configs = {{a, {1, 3}}}, .out = folder_ / "runs", .kept = kept});
  ASSERT_EQ(runs.size(), 3u);
  EXPECT_TRUE(runs[0].kept);
  EXPECT_EQ(runs[0].folder.path(), (kept / "one").string());
  EXPECT_EQ(read_sweep_state(runs[0]).phase, Phase::kFinished);
  EXPECT_NO_THROW(check_same_run(runs[0]));
  for (size_t i : {1, 2}) {
    EXPECT_FALSE(runs[i].kept) << i;
    EXPECT_EQ(runs[i].folder.path(),
              folder_ / "runs" / ("lra-a-s" + std::to_string(i + 1)));
  }
}

TEST_F(SweepOfRuns, OptionsThatAreNotGivenHaveTheirDefaults) {
  const auto text = [](const std::string& options) {
    return R"({"data": {"task": "listops"}, "model": {"attention": "universal",
               "attention_options": )" +
           options + "}}";
  };
  const fs::path kept = folder_ / "kept";
  keep(kept, "default", text(R"({"L": 8, "M": 8})"));
  const auto is_kept = [&](const std::string& options) {
    const std::string file = config("a.json", text(options));
    return plan_sweep({.configs = {{file}}, .kept = kept}).at(0).kept;
  };
  EXPECT_TRUE(is_kept("{}"));
  EXPECT_TRUE(is_kept(R"({"M": 8, "L": 8})")) << "in another order";
  EXPECT_FALSE(is_kept(R"({"M": 16})"));
}

TEST_F(SweepOfRuns, TranslationsOfOtherDataAreOthers) {
  const auto text = [](const std::string& data) {
    return R"({"data": {"task": "translation", "path": ")" + data +
           R"("}, "model": {"attention": "linear", "positions": "sinusoidal"}})";
  };
  const fs::path kept = folder_ / "kept";
  keep(kept, "one", text("here/multi30k"));
  keep(kept, "two", text("here/other/"));
  const auto is_kept = [&](const char* data) {
    const std::string file = config("a.json", text(data));
    return plan_sweep({.configs = {{file}}, .kept = kept}).at(0).kept;
  };
  EXPECT_TRUE(is_kept("there/multi30k"));
  EXPECT_TRUE(is_kept("there/multi30k/"));
  EXPECT_TRUE(is_kept("there/other"));
  EXPECT_FALSE(is_kept("there/all"));
  EXPECT_FALSE(is_kept("there/all/"));
}

TEST_F(SweepOfRuns, LeavesKeptRunsAloneThatItCannotRead) {
  const std::string a = config("a.json", kListops);
  const fs::path kept = folder_ / "kept";
  keep(kept, "later",
       R"({"data": {"task": "listops"}, "model": {"attention": "later"}})");
  keep(kept, "one", kListops);
  EXPECT_TRUE(plan_sweep({.configs = {{a}}, .kept = kept}).at(0).kept);
}

TEST_F(SweepOfRuns, AnErrorNamesTheLineOfTheList) {
  const std::string a = config("a.json", kListops);
  const auto error_of = [&](const SweepConfig& source) -> std::string {
    try {
      plan_sweep({.configs = {source}});
    } catch (const c10::ValueError& error) {
      return error.what_without_backtrace();
    }
    return "";
  };
  const std::string where = "runs.txt:3: ";
  EXPECT_TRUE(
      error_of({a, {}, {"stebs=7"}, where}).starts_with(where + "--set"));
  EXPECT_TRUE(error_of({a + "x", {}, {}, where}).starts_with(where + "cannot"));
}

TEST_F(SweepOfRuns, RefusesKeptRunsThatAreNotThere) {
  const std::string a = config("a.json", kListops);
  EXPECT_THROW(plan_sweep({.configs = {{a}}, .kept = folder_ / "nothing"}),
               c10::ValueError);
}

}  // namespace
}  // namespace luna::train
