#include "luna/train/sweep.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>

#include "config/json.h"
#include "luna/io/text_file.h"
#include "luna/train/open_data.h"
#include "luna/train/read_config.h"
#include "train/result_key.h"

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

/// The summary of a run that has finished.
std::optional<Json> finished_summary(const RunFolder& run) {
  if (!fs::exists(run.summary())) return {};
  Json summary = Json::parse(io::read_text(run.summary()), nullptr, false);
  if (!summary.is_object() || !summary.value("finished", false)) return {};
  return summary;
}

/// Who named a task first, and the samples that it wants.
struct DataOfTask {
  std::string source{};
  Json key{};
};

TrainConfig read_source(const SweepConfig& source,
                        const std::vector<std::string>& overrides) {
  std::vector<std::string> all = source.overrides;
  all.insert(all.end(), overrides.begin(), overrides.end());
  if (source.where.empty()) return read_train_config(source.file, all);
  try {
    return read_train_config(source.file, all);
  } catch (const std::exception& error) {
    const auto* own = dynamic_cast<const c10::Error*>(&error);
    TORCH_CHECK_VALUE(false, source.where,
                      own ? own->what_without_backtrace() : error.what());
  }
}

struct KeptRun {
  std::string folder{};
  TrainConfig config{};
};

/// The finished runs in the folders of `folder`.
std::vector<KeptRun> kept_runs(const std::string& folder) {
  std::vector<KeptRun> kept;
  if (folder.empty()) return kept;
  TORCH_CHECK_VALUE(fs::is_directory(folder),
                    "--kept: expected a folder of runs, got ", folder);
  for (const auto& entry : fs::directory_iterator(folder)) {
    const RunFolder run(entry.path().string());
    if (!run.holds_run() || !finished_summary(run)) continue;
    try {
      kept.push_back({run.path(), read_train_config(run.config())});
    } catch (const c10::Error& error) {  // of another luna's, perhaps
      TORCH_WARN("--kept: left out ", run.path(), ": ",
                 error.what_without_backtrace());
    }
  }
  return kept;
}

/// A run's config before it had seen its data, which settles what was left
/// open.
TrainConfig as_asked(TrainConfig run, const TrainConfig& asked) {
  if (asked.model.max_positions == 0) run.model.max_positions = 0;
  return run;
}

/// One with the result of `config`, or null.
const KeptRun* find_kept(const std::vector<KeptRun>& kept,
                         const TrainConfig& config) {
  if (kept.empty()) return nullptr;
  const auto key_of = [&](const TrainConfig& c) {
    return nlohmann::json(result_key(as_asked(c, config)));  // in no order
  };
  const auto own = key_of(config);
  const auto found = std::ranges::find_if(kept, [&](const KeptRun& run) {
    return run.config.seed == config.seed &&
           data_set_name(run.config.data) == data_set_name(config.data) &&
           key_of(run.config) == own;
  });
  return found == kept.end() ? nullptr : &*found;
}

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) /
         static_cast<double>(values.size());
}

}  // namespace

std::vector<SweepRun> plan_sweep(const SweepPlan& plan) {
  TORCH_CHECK_VALUE(!plan.configs.empty(), "expected at least one config");
  int64_t first_seed = plan.configs[0].seeds.first;
  int64_t last_seed = plan.configs[0].seeds.last;
  for (const SweepConfig& config : plan.configs) {
    first_seed = std::min(first_seed, config.seeds.first);
    last_seed = std::max(last_seed, config.seeds.last);
  }
  const std::vector<KeptRun> kept = kept_runs(plan.kept);
  std::vector<SweepRun> runs;
  std::map<std::string, DataOfTask> tasks;
  std::map<std::string, std::string> source_of_name;
  for (int64_t seed = first_seed; seed <= last_seed; ++seed) {
    for (const SweepConfig& source : plan.configs) {
      if (!source.seeds.contains(seed)) continue;
      const std::string group = group_of(source.file);
      std::string name = fmt::format("{}-s{}", group, seed);
      const auto [other, added] = source_of_name.emplace(name, source.file);
      TORCH_CHECK_VALUE(added,
                        "expected configs of different folders or "
                        "names, got two for a run called ",
                        name, ": ", other->second, " and ", source.file);
      TrainConfig config = read_source(source, plan.overrides);
      config.name = group;
      config.seed = seed;
      const auto [first, is_first] = tasks.emplace(
          config.data.task, DataOfTask{source.file, data_key(config.data)});
      TORCH_CHECK_VALUE(is_first || first->second.key == data_key(config.data),
                        first->second.source, " and ", source.file,
                        " want different data of task ", config.data.task,
                        "; sweep them apart");
      const KeptRun* done = find_kept(kept, config);
      runs.push_back(
          {.name = name,
           .group = group,
           .source = source,
           .config = std::move(config),
           .folder = RunFolder(done ? done->folder : plan.out + "/" + name),
           .kept = done != nullptr});
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
  const auto summary = finished_summary(run.folder);
  if (!summary) return state;
  state.phase = SweepState::Phase::kFinished;
  state.step = summary->value("steps", state.step);
  state.accuracy.reset();  // of a score there is none
  if (summary->contains("test_accuracy")) {
    state.accuracy = summary->value("test_accuracy", 0.0);
  }
  state.loss = summary->value("test_loss", 0.0);
  state.steps_per_s = summary->value("steps_per_s", 0.0);
  state.seconds = summary->value("seconds", 0.0);
  return state;
}

void check_same_run(const SweepRun& run) {
  if (run.kept || !run.folder.holds_run()) return;
  const TrainConfig there =
      as_asked(read_train_config(run.folder.config()), run.config);
  TORCH_CHECK_VALUE(identity(there) == identity(run.config), run.folder.path(),
                    " holds a run of another config than ", run.source.file,
                    "; name another folder by --out");
}

std::optional<double> sweep_seconds_left(const std::vector<SweepRun>& runs,
                                         const std::vector<SweepState>& states,
                                         int64_t jobs) {
  // Seconds a step, of a config and of a task.
  std::map<std::string, std::vector<double>> pace;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].kept) continue;  // another machine's
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
