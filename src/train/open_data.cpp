#include "luna/train/open_data.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "data/subsets.h"
#include "luna/convert/glue_data.h"
#include "luna/data/packed.h"
#include "luna/data/tasks.h"
#include "luna/data/translation.h"
#include "luna/io/atomic.h"
#include "luna/train/run_model.h"
#include "luna/train/trainer.h"

namespace luna::train {
namespace {

namespace fs = std::filesystem;

/// Runs of any seed have the same data.
constexpr uint64_t kDataSeed = 1;

bool is_packed(const std::string& folder) {
  return !folder.empty() && fs::exists(data::split_file(folder, "train"));
}

/// A generator's setting as the packed data had it; its default if the file
/// says nothing of it.
std::string setting_of(const data::PackedInfo& packed, const data::Task& task,
                       const std::string& name) {
  const auto found = packed.origin.find(name);
  if (found != packed.origin.end()) return found->second;
  for (const config::OptionInfo& info : task.settings) {
    if (info.name == name) return config::to_string(info.default_value);
  }
  return "nothing of that name";
}

void check_settings(const DataConfig& config, const std::string& folder) {
  const std::string file = data::split_file(folder, "train");
  const data::PackedInfo packed = data::read_packed_info(file);
  for (const auto& [name, value] : config.settings) {
    const std::string had =
        setting_of(packed, data::find_task(config.task), name);
    TORCH_CHECK_VALUE(config::to_string(value) == had, file,
                      ": expected data made with ", name, " = ",
                      config::to_string(value), ", got ", had,
                      "; name another folder to have it made");
  }
}

data::Splits open_packed_folder(const DataConfig& config,
                                const std::string& folder) {
  data::Splits splits{.train = data::open_split(folder, "train"),
                      .validation = data::open_split(folder, "validation"),
                      .test = data::open_split(folder, "test"),
                      .source = folder};
  for (auto* split : {&splits.train, &splits.validation, &splits.test}) {
    const std::string& task = (*split)->info().task;
    TORCH_CHECK_VALUE(task == config.task, folder, ": expected the task ",
                      config.task, ", got ", task);
    *split = data::at_most(*split, config.samples, kDataSeed);
  }
  check_settings(config, folder);
  return splits;
}

/// A folder of luna data translation.
data::Splits open_translation(const DataConfig& config) {
  TORCH_CHECK_VALUE(!config.path.empty(),
                    "data.path: expected a folder of luna data translation "
                    "(--data DIR), got none");
  const auto tokenizer = text::Bpe::open(config.path);
  const auto open = [&](const char* split) {
    auto pairs =
        data::TranslationData::open(config.path, split, tokenizer.size());
    if (config.samples > 0 && config.samples < pairs.size()) {
      auto chosen =
          data::DataOrder(pairs.size(), config.samples, kDataSeed).batch(0);
      std::ranges::sort(chosen);
      pairs = pairs.some(chosen);
    }
    return std::make_shared<data::TranslationDataset>(
        config.path, std::move(pairs), tokenizer);
  };
  return {.train = open("train"),
          .validation = open("validation"),
          .test = open("test"),
          .source = config.path};
}

void pack(const DataConfig& config, const data::Splits& splits,
          const std::string& folder) {
  std::map<std::string, std::string> origin = {
      {"source", splits.source}, {"seed", std::to_string(kDataSeed)}};
  if (config.samples > 0) origin["samples"] = std::to_string(config.samples);
  for (const auto& [name, value] : config.settings) {
    origin[name] = config::to_string(value);
  }
  io::make_folders_above(folder);
  io::AtomicFolder made(folder);
  for (size_t i = 0; i < data::kSplitNames.size(); ++i) {
    const std::string name = data::kSplitNames[i];
    data::write_packed(made.file(name + ".luna"), *splits.all()[i],
                       {.split = name, .origin = origin});
  }
  made.commit();
}

/// Where a run's data is or will be, and how it gets there.
struct Place {
  Place(const DataConfig& config, const std::string& fallback)
      : task(data::find_task(config.task)) {
    std::error_code error;
    const bool filled = fs::exists(config.path, error) &&
                        !(fs::is_directory(config.path, error) &&
                          fs::is_empty(config.path, error));
    generated = task.generated && !filled;
    folder = config.path.empty() && generated ? fallback : config.path;
    there = filled || generated;
  }

  const data::Task& task;
  bool generated = false;  ///< made, or opened if that was done before
  bool there = false;      ///< or to be made
  std::string folder{};
};

std::string not_there(const Place& place) {
  return fmt::format(
      "data.path: expected a folder with the packed splits of {} or its own "
      "files (--data DIR), got {}; pack them by: luna data pack {} --data "
      "FILES --out DIR; to get them: {}",
      place.task.name,
      place.folder.empty() ? "none" : place.folder + ", where nothing is",
      place.task.name, place.task.how);
}

/// "luna data pack listops --out DIR --samples 60 --set max_depth=3".
std::string pack_command(const DataConfig& config) {
  std::string command = "luna data pack " + config.task + " --out DIR";
  if (config.samples > 0)
    command += fmt::format(" --samples {}", config.samples);
  for (const auto& [name, value] : config.settings) {
    command += fmt::format(" --set {}={}", name, config::to_string(value));
  }
  return command;
}

/// As many as a task has, or as few as the config wants.
std::array<int64_t, 3> at_most(std::array<int64_t, 3> samples, int64_t most) {
  for (int64_t& count : samples) {
    if (most > 0) count = std::min(count, most);
  }
  return samples;
}

}  // namespace

data::Splits open_data(const DataConfig& config, const std::string& fallback,
                       const data::LoadProgress& progress) {
  const Place place(config, fallback);
  if (is_packed(place.folder)) return open_packed_folder(config, place.folder);
  TORCH_CHECK_VALUE(place.there, not_there(place));
  data::Splits splits = data::load_task(
      config.task, {.folder = place.generated ? "" : place.folder,
                    .samples = config.samples,
                    .seed = kDataSeed,
                    .settings = config.settings,
                    .progress = progress});
  if (!place.generated || place.folder.empty()) return splits;
  pack(config, splits, place.folder);
  return open_packed_folder(config, place.folder);
}

data::Splits open_data(const TrainConfig& config, const std::string& fallback,
                       const data::LoadProgress& progress) {
  if (config.data.task == data::kTranslationTask) {
    return open_translation(config.data);
  }
  if (config.model.base.empty() || !data::is_glue_task(config.data.task)) {
    return open_data(config.data, fallback, progress);
  }
  const auto& [task, path] = std::tie(config.data.task, config.data.path);
  TORCH_CHECK_VALUE(!path.empty(),
                    "data.path: expected the folder with the tsv files of ",
                    task, " (--data DIR), got none");
  const auto model = open_base(config.model, classes_of(task));
  TORCH_CHECK_VALUE(!model.bert().is_empty(), config.model.base,
                    ": expected a BERT for the texts of ", task, ", got ",
                    model.architecture());
  const auto tokenizer = text::WordPiece::open(config.model.base);
  return convert::open_glue(
      task, path, tokenizer, model.bert()->config(),
      {.max_length = config.data.max_length, .samples = config.data.samples});
}

DataPlan plan_data(const TrainConfig& config, const std::string& fallback) {
  const bool opened =
      config.data.task == data::kTranslationTask ||
      (!config.model.base.empty() && data::is_glue_task(config.data.task));
  if (!opened) return plan_data(config.data, fallback);
  const data::Splits splits = open_data(config, fallback);
  DataPlan plan;
  plan.facts.info = splits.train->info();
  plan.facts.samples = sizes(splits);
  plan.facts.longest = longest_sequence(splits, 0);
  return plan;
}

DataPlan plan_data(const DataConfig& config, const std::string& fallback) {
  const Place place(config, fallback);
  DataPlan plan{.facts = data::task_facts(place.task, config.settings)};
  if (is_packed(place.folder)) {
    const data::Splits splits = open_packed_folder(config, place.folder);
    plan.facts.info = splits.train->info();
    plan.facts.samples = sizes(splits);
    plan.facts.longest = 0;
    for (const auto& split : splits.all()) {
      plan.facts.longest = std::max(plan.facts.longest, split->longest());
    }
    return plan;
  }
  plan.facts.samples = at_most(plan.facts.samples, config.samples);
  if (!place.there) {
    plan.note = not_there(place);
  } else if (place.generated) {
    plan.note = fmt::format(
        "data.path: no packed splits yet: the run generates them{}; to do it "
        "once for several runs: {}",
        place.folder.empty() ? "" : " into " + place.folder,
        pack_command(config));
  } else {
    plan.note = fmt::format(
        "data.path: no packed splits in {}: the run reads the task's own "
        "files; to do it once for several runs: luna data pack {} --data {} "
        "--out DIR",
        place.folder, place.task.name, place.folder);
  }
  return plan;
}

std::string data_set_name(const DataConfig& config) {
  if (config.task != data::kTranslationTask) return config.task;
  // What stands behind the last slash of a path is nothing.
  const fs::path path = fs::path(config.path + "/").parent_path();
  const std::string name = path.filename().string();
  return name.empty() ? config.task : name;
}

std::string shortfall(const DataConfig& config,
                      const std::array<int64_t, 3>& samples) {
  const auto& tasks = data::tasks();
  const auto task =
      std::find_if(tasks.begin(), tasks.end(),
                   [&](const auto& t) { return t.name == config.task; });
  if (task == tasks.end()) return "";  // GLUE's, or of another version
  const auto expected = at_most(task->samples, config.samples);
  std::vector<std::string> short_ones;
  for (size_t i = 0; i < samples.size(); ++i) {
    if (samples[i] >= expected[i]) continue;
    short_ones.push_back(fmt::format("{} {} of {}", data::kSplitNames[i],
                                     samples[i], expected[i]));
  }
  if (short_ones.empty()) return "";
  return fmt::format(
      "data: fewer samples than {}: {}",
      config.samples > 0
          ? fmt::format("data.samples = {} asks for", config.samples)
          : config.task + " has",
      fmt::join(short_ones, ", "));
}

std::array<int64_t, 3> sizes(const data::Splits& splits) {
  return {splits.train->size(), splits.validation->size(), splits.test->size()};
}

}  // namespace luna::train
