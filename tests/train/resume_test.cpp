#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "luna/io/faults.h"
#include "luna/io/text_file.h"
#include "luna/train/trainer.h"
#include "support/errors.h"
#include "train/checkpoint.h"
#include "train/tiny.h"

// A run that was stopped, killed or robbed of its disk goes on to the bits of
// one that was not.

namespace luna::train {
namespace {

namespace fs = std::filesystem;
using luna::testing::bytes_of;
using luna::testing::expect_error;
using luna::testing::fresh_folder;
using luna::testing::metrics_without_times;
using luna::testing::tiny_config;
using luna::testing::tiny_data;
using luna::testing::tiny_options;
using luna::testing::tiny_splits;
using End = TrainResult::End;

/// All of a finished run that does not depend on the clock.
std::map<std::string, std::string> outcome(const std::string& folder) {
  const RunFolder run(folder);
  std::map<std::string, std::string> files;
  const int64_t last = run.steps().front();
  for (const char* name : {"/model.safetensors", "/optimizer.safetensors"}) {
    files[std::to_string(last) + name] = bytes_of(run.checkpoint(last) + name);
  }
  for (const char* name :
       {"best/model.safetensors", "best/state.json", "config.json",
        "samples.json", "start.safetensors"}) {
    files[name] = bytes_of(folder + "/" + name);
  }
  files["metrics"] = metrics_without_times(folder);
  return files;
}

/// Names of what differs; empty if all is the same.
std::string difference(const std::string& folder,
                       const std::map<std::string, std::string>& expected) {
  const auto found = outcome(folder);
  std::string names;
  for (const auto& [name, bytes] : expected) {
    const auto it = found.find(name);
    if (it == found.end() || it->second != bytes) names += name + " ";
  }
  return names + (found.size() == expected.size() ? "" : "other files");
}

std::map<std::string, std::string> uninterrupted(const TrainConfig& config) {
  const std::string folder = fresh_folder("uninterrupted");
  train(config, tiny_splits(), tiny_options(folder));
  return outcome(folder);
}

/// Starts the run, or goes on with it where there is one.
TrainResult go_on(const std::string& folder, const TrainConfig& config,
                  const TrainHooks& hooks = {}) {
  TrainOptions options = tiny_options(folder);
  options.resume = RunFolder(folder).holds_run();
  return train(config, tiny_splits(), options, hooks);
}

TEST(Resume, StoppedAnywhereItGoesOnToTheSameBits) {
  const TrainConfig config = tiny_config();
  const auto expected = uninterrupted(config);
  bool was_stopped = true;
  int64_t stops = 0;
  for (int64_t limit = 1; was_stopped; ++limit) {
    const std::string folder = fresh_folder("stopped");
    int64_t asked = 0;
    const TrainResult result =
        go_on(folder, config, {.stop = [&] { return ++asked >= limit; }});
    was_stopped = result.end == End::kInterrupted;
    if (was_stopped) {
      ++stops;
      if (result.step > 0) {
        EXPECT_EQ(result.checkpoint, RunFolder(folder).checkpoint(result.step));
      }
      EXPECT_EQ(go_on(folder, config).end, End::kFinished);
    }
    EXPECT_EQ(difference(folder, expected), "") << "stopped at " << limit;
  }
  // 12 steps, 3 validations of 5 batches, 8 batches of test
  EXPECT_EQ(stops, 12 + 15 + 8);
}

TEST(Resume, TheSummarySaysHowManyRunsWentAtOnceAtMost) {
  const std::string folder = fresh_folder("side-by-side");
  TrainOptions options = tiny_options(folder);
  options.side_by_side = 3;
  int64_t asked = 0;
  train(tiny_config(), tiny_splits(), options,
        {.stop = [&] { return ++asked > 3; }});
  options.resume = true;
  options.side_by_side = 1;
  EXPECT_EQ(train(tiny_config(), tiny_splits(), options).end, End::kFinished);
  const auto summary =
      nlohmann::json::parse(bytes_of(RunFolder(folder).summary()));
  EXPECT_EQ(summary.at("side_by_side"), 3);
}

TEST(Resume, StoppedByPatienceItIsTheSameAgain) {
  TrainConfig config = tiny_config();
  config.optimizer.lr = 0.0;
  config.patience = 1;
  config.steps = 30;
  const auto expected = uninterrupted(config);
  const std::string folder = fresh_folder("patient");
  int64_t asked = 0;
  // Step 8 ends the run; it is stopped within the test that follows.
  go_on(folder, config, {.stop = [&] { return ++asked > 8 + 10 + 3; }});
  EXPECT_EQ(RunFolder(folder).steps().front(), 8);
  EXPECT_EQ(go_on(folder, config).end, End::kStoppedEarly);
  EXPECT_EQ(difference(folder, expected), "");
}

// --- damaged checkpoints
// ------------------------------------------------------

void cut_in_half(const std::string& path) {
  fs::resize_file(path, fs::file_size(path) / 2);
}

void flip_bit(const std::string& path) {
  std::string bytes = bytes_of(path);
  bytes[bytes.size() * 2 / 3] ^= 0x10;
  std::ofstream(path, std::ios::binary) << bytes;
}

/// Stopped after step 7: checkpoints 7 and 6.
std::string stopped_after_seven(const std::string& name) {
  const std::string folder = fresh_folder(name);
  int64_t asked = 0;
  // Seven steps and a validation of five batches
  go_on(folder, tiny_config(), {.stop = [&] { return ++asked > 7 + 5; }});
  EXPECT_EQ(RunFolder(folder).steps(), (std::vector<int64_t>{7, 6}));
  return folder;
}

TEST(Resume, GoesOnFromTheEarlierCheckpointWhenTheLaterIsDamaged) {
  const auto expected = uninterrupted(tiny_config());
  for (const char* name :
       {"model.safetensors", "optimizer.safetensors", "state.json"}) {
    for (const auto& damage :
         {std::function<void(const std::string&)>(cut_in_half),
          std::function<void(const std::string&)>(flip_bit),
          std::function<void(const std::string&)>(
              [](const std::string& path) { fs::remove(path); })}) {
      const std::string folder = stopped_after_seven("damaged");
      const std::string path = RunFolder(folder).checkpoint(7) + "/" + name;
      damage(path);
      std::string warned;
      const TrainResult result =
          go_on(folder, tiny_config(),
                {.warn = [&](const std::string& text) { warned += text; }});
      EXPECT_EQ(result.end, End::kFinished);
      EXPECT_NE(warned.find(path), std::string::npos) << warned;
      EXPECT_EQ(difference(folder, expected), "") << path;
    }
  }
}

TEST(Resume, RefusesWhenEveryCheckpointIsDamaged) {
  const std::string folder = stopped_after_seven("all-damaged");
  flip_bit(RunFolder(folder).checkpoint(7) + "/model.safetensors");
  cut_in_half(RunFolder(folder).checkpoint(6) + "/state.json");
  expect_error<c10::Error>([&] { go_on(folder, tiny_config()); },
                           {"step-00000006/state.json", "expected"});
}

TEST(Resume, RefusesOtherTrainingData) {
  const std::string folder = stopped_after_seven("other-data");
  Splits splits = tiny_splits();
  splits.train = tiny_data(49, 1);
  TrainOptions options = tiny_options(folder);
  options.resume = true;
  expect_error<c10::ValueError>([&] { train(tiny_config(), splits, options); },
                                {"50", "49"});
}

TEST(Resume, NeverSavesWhatIsNotFinite) {
  const std::string folder = fresh_folder("not-finite");
  const at::Tensor weight = at::full({3}, 1.0);
  weight[1] = std::numeric_limits<double>::infinity();
  expect_error<c10::Error>(
      [&] {
        save_checkpoint(folder, {{{"layers.0.w", weight}}, {}}, {});
      },
      {folder, "finite", "layers.0.w"});
  EXPECT_FALSE(fs::exists(folder));
}

// --- a disk that fails
// ----------------------------------------------------------

struct NoFault {
  ~NoFault() { io::set_fault({}); }
};

TEST(Resume, AFullDiskLeavesTheEarlierCheckpoint) {
  const NoFault afterwards;
  io::Fault fault{.action = io::Fault::Action::kFail,
                  .call = std::numeric_limits<int64_t>::max(),
                  .point = "sync",
                  .repeats = true};
  io::set_fault(fault);
  const auto expected = uninterrupted(tiny_config());
  const int64_t syncs = io::fault_calls();
  for (const int error : {ENOSPC, EROFS, EACCES}) {
    for (const int64_t quarter : {1, 2, 3}) {
      const std::string folder = fresh_folder("full");
      fault.error = error;
      fault.call = quarter * syncs / 4;
      io::set_fault(fault);
      expect_error<c10::Error>([&] { go_on(folder, tiny_config()); },
                               {folder, std::strerror(error)});
      // Of four checkpoints the first has been saved by then.
      EXPECT_TRUE(quarter == 1 || !RunFolder(folder).steps().empty());
      io::set_fault({});
      go_on(folder, tiny_config());
      EXPECT_EQ(difference(folder, expected), "");
    }
  }
}

TEST(Resume, NoPlaceForTheRunIsSaid) {
  const std::string file = fresh_folder("a-file");
  io::write_text(file, "no folder");
  expect_error<c10::Error>([&] { go_on(file + "/run", tiny_config()); },
                           {file + "/run"});
}

// --- SIGKILL
// --------------------------------------------------------------------

TrainConfig short_config() {
  TrainConfig config = tiny_config();
  config.steps = 4;
  config.log_every = 1;
  config.eval_every = 2;
  config.checkpoint_every = 2;
  config.keep_checkpoints = 1;
  return config;
}

pid_t start_child(const std::function<void()>& work) {
  const pid_t child = fork();
  if (child != 0) return child;
  try {
    work();
    _exit(0);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    _exit(1);
  }
}

int end_of(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

bool was_killed(int status) {
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

void require(bool condition, const std::string& what) {
  if (condition) return;
  std::fprintf(stderr, "failed: %s\n", what.c_str());
  std::exit(1);
}

/// Goes on to the end in a child and compares.
void finish_and_compare(const std::string& folder, const TrainConfig& config,
                        const std::map<std::string, std::string>& expected,
                        const std::string& what) {
  require(end_of(start_child([&] { go_on(folder, config); })) == 0,
          what + ": resume");
  require(difference(folder, expected).empty(),
          what + ": differs in " + difference(folder, expected));
}

/// In a process that has not started a thread yet, so that it may fork.
[[noreturn]] void kill_at_every_call() {
  at::set_num_threads(1);
  const TrainConfig config = short_config();
  const std::string whole = fresh_folder("whole");
  const std::string count = fresh_folder("count");
  require(end_of(start_child([&] {
            go_on(whole, config);
            io::write_text(count, std::to_string(io::fault_calls()));
          })) == 0,
          "the run that is not killed");
  const auto expected = outcome(whole);
  const int64_t calls = std::stoll(bytes_of(count));
  require(calls > 30, "more than 30 calls to be killed at");
  for (int64_t call = 1; call <= calls; ++call) {
    const std::string folder = fresh_folder("killed");
    const std::string what = "killed at call " + std::to_string(call);
    const int status = end_of(start_child([&] {
      io::set_fault({.action = io::Fault::Action::kKill, .call = call});
      go_on(folder, config);
    }));
    require(was_killed(status), what);
    finish_and_compare(folder, config, expected, what);
  }
  std::exit(0);
}

[[noreturn]] void kill_at_random_times() {
  at::set_num_threads(1);
  const TrainConfig config = tiny_config();
  const std::string whole = fresh_folder("whole");
  require(end_of(start_child([&] { go_on(whole, config); })) == 0,
          "the run that is not killed");
  const auto expected = outcome(whole);
  std::mt19937_64 random(1);
  int kills = 0;
  while (kills < 40) {
    const std::string folder = fresh_folder("killed");
    for (bool killed = true; killed;) {
      const pid_t child = start_child([&] { go_on(folder, config); });
      usleep(random() % 60000);
      kill(child, SIGKILL);
      const int status = end_of(child);
      killed = was_killed(status);
      require(killed || status == 0, "resume after a kill");
      kills += killed ? 1 : 0;
    }
    require(difference(folder, expected).empty(),
            "after random kills it differs in " + difference(folder, expected));
  }
  std::exit(0);
}

TEST(ResumeDeathTest, KilledAtEveryCallThatWritesItGoesOnToTheSameBits) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(kill_at_every_call(), ::testing::ExitedWithCode(0), "");
}

TEST(ResumeDeathTest, KilledAtRandomTimesItGoesOnToTheSameBits) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(kill_at_random_times(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace luna::train
