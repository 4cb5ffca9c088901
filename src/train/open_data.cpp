#include "luna/train/open_data.h"

#include <c10/util/Exception.h>

#include <filesystem>
#include <map>

#include "data/subsets.h"
#include "luna/data/packed.h"
#include "luna/data/tasks.h"
#include "luna/io/atomic.h"

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

void pack(const DataConfig& config, const data::Splits& splits,
          const std::string& folder) {
  std::map<std::string, std::string> origin = {
      {"source", splits.source}, {"seed", std::to_string(kDataSeed)}};
  for (const auto& [name, value] : config.settings) {
    origin[name] = config::to_string(value);
  }
  const fs::path parent = fs::path(folder).parent_path();
  if (!parent.empty()) fs::create_directories(parent);
  io::AtomicFolder made(folder);
  for (size_t i = 0; i < data::kSplitNames.size(); ++i) {
    const std::string name = data::kSplitNames[i];
    data::write_packed(made.file(name + ".luna"), *splits.all()[i],
                       {.split = name, .origin = origin});
  }
  made.commit();
}

}  // namespace

data::Splits open_data(const DataConfig& config, const std::string& fallback,
                       const data::LoadProgress& progress) {
  const bool own_files = fs::exists(config.path) && !fs::is_empty(config.path);
  const bool generated = data::find_task(config.task).generated && !own_files;
  const std::string folder =
      config.path.empty() && generated ? fallback : config.path;
  if (is_packed(folder)) return open_packed_folder(config, folder);
  data::Splits splits =
      data::load_task(config.task, {.folder = generated ? "" : folder,
                                    .samples = config.samples,
                                    .seed = kDataSeed,
                                    .settings = config.settings,
                                    .progress = progress});
  if (!generated || folder.empty()) return splits;
  pack(config, splits, folder);
  return open_packed_folder(config, folder);
}

}  // namespace luna::train
