#include "luna/train/sweep.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>

#include "config/json.h"
#include "luna/io/text_file.h"
#include "luna/train/read_config.h"

namespace luna::train {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

/// A config's folder and name, whatever stands beside it in a sweep: the same
/// config must find its runs again in a longer list.
std::string group_of(const std::string& file) {
  const fs::path path = fs::absolute(file).lexically_normal();
  return path.parent_path().filename().string() + "-" + path.stem().string();
}

/// What decides which samples a task has.
Json data_key(const DataConfig& data) {
  Json json = config::write_json(data);
  for (const char* key : {"path", "max_length", "augment"}) json.erase(key);
  return json;
}

/// A config as two runs must share it to be one: where the data lies may
/// differ from machine to machine.
std::string identity(TrainConfig config) {
  config.data.path.clear();
  return config_text(config);
}

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) /
         static_cast<double>(values.size());
}

}  // namespace

std::vector<SweepRun> plan_sweep(const SweepPlan& plan) {
  TORCH_CHECK_VALUE(!plan.configs.empty(), "expected at least one config");
  TORCH_CHECK_VALUE(plan.seeds >= 1, "expected at least one seed, got ",
                    plan.seeds);
  std::vector<SweepRun> runs;
  std::map<std::string, const SweepRun*> first_of_task;
  std::map<std::string, std::string> source_of_name;
  runs.reserve(plan.configs.size() * static_cast<size_t>(plan.seeds));
  for (int64_t seed = plan.first_seed; seed < plan.first_seed + plan.seeds;
       ++seed) {
    for (const std::string& file : plan.configs) {
      const std::string group = group_of(file);
      std::string name = fmt::format("{}-s{}", group, seed);
      const auto [other, added] = source_of_name.emplace(name, file);
      TORCH_CHECK_VALUE(added,
                        "expected configs of different folders or "
                        "names, got two for a run called ",
                        name, ": ", other->second, " and ", file);
      TrainConfig config = read_train_config(file, plan.overrides);
      config.name = group;
      config.seed = seed;
      runs.push_back({.name = name,
                      .group = group,
                      .source = file,
                      .config = std::move(config),
                      .folder = RunFolder(plan.out + "/" + name)});
      const SweepRun& run = runs.back();
      const auto [first, is_first] =
          first_of_task.emplace(run.config.data.task, &run);
      TORCH_CHECK_VALUE(is_first || data_key(first->second->config.data) ==
                                        data_key(run.config.data),
                        first->second->source, " and ", file,
                        " want different data of task ", run.config.data.task,
                        "; sweep them apart");
    }
  }
  return runs;
}

SweepState read_sweep_state(const SweepRun& run) {
  SweepState state;
  if (!run.folder.holds_run()) return state;
  state.phase = SweepState::Phase::kStarted;
  // The last lines hold where it is; a line that is being written is skipped.
  std::ifstream file(run.folder.metrics());
  for (std::string line; std::getline(file, line);) {
    const Json json = Json::parse(line, nullptr, false);
    if (!json.is_object()) continue;
    if (json.value("kind", "") != "train") continue;
    state.step = json.value("step", state.step);
    state.loss = json.value("loss", 0.0);
    state.accuracy = json.value("accuracy", 0.0);
    state.steps_per_s = json.value("steps_per_s", 0.0);
    state.seconds = json.value("seconds", 0.0);
  }
  if (!fs::exists(run.folder.summary())) return state;
  const Json summary =
      Json::parse(io::read_text(run.folder.summary()), nullptr, false);
  if (!summary.is_object() || !summary.value("finished", false)) return state;
  state.phase = SweepState::Phase::kFinished;
  state.step = summary.value("steps", state.step);
  state.accuracy.reset();  // of a score there is none
  if (summary.contains("test_accuracy")) {
    state.accuracy = summary.value("test_accuracy", 0.0);
  }
  state.loss = summary.value("test_loss", 0.0);
  state.steps_per_s = summary.value("steps_per_s", 0.0);
  state.seconds = summary.value("seconds", 0.0);
  return state;
}

void check_same_run(const SweepRun& run) {
  if (!run.folder.holds_run()) return;
  TrainConfig there = read_train_config(run.folder.config());
  // A run settles it when it has seen its data.
  if (run.config.model.max_positions == 0) there.model.max_positions = 0;
  TORCH_CHECK_VALUE(identity(there) == identity(run.config), run.folder.path(),
                    " holds a run of another config than ", run.source,
                    "; name another folder by --out");
}

std::optional<double> sweep_seconds_left(const std::vector<SweepRun>& runs,
                                         const std::vector<SweepState>& states,
                                         int64_t jobs) {
  // Seconds a step, of a config and of a task.
  std::map<std::string, std::vector<double>> pace;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (states[i].steps_per_s.value_or(0) <= 0) continue;
    pace[runs[i].group].push_back(1 / *states[i].steps_per_s);
    pace["task " + runs[i].config.data.task].push_back(1 /
                                                       *states[i].steps_per_s);
    pace["all"].push_back(1 / *states[i].steps_per_s);
  }
  if (pace.empty()) return std::nullopt;
  double left = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (states[i].phase == SweepState::Phase::kFinished) continue;
    const auto steps =
        static_cast<double>(runs[i].config.steps - states[i].step);
    for (const std::string& key :
         {runs[i].group, "task " + runs[i].config.data.task,
          std::string("all")}) {
      const auto found = pace.find(key);
      if (found == pace.end()) continue;
      left += steps * mean(found->second);
      break;
    }
  }
  return left / static_cast<double>(jobs);
}

}  // namespace luna::train
