#include "luna/train/open_data.h"

#include <c10/util/Exception.h>

#include <filesystem>

#include "luna/data/packed.h"
#include "luna/data/tasks.h"
#include "luna/io/atomic.h"

namespace luna::train {
namespace {

namespace fs = std::filesystem;

bool is_packed(const std::string& folder) {
  return !folder.empty() && fs::exists(data::split_file(folder, "train"));
}

data::Splits open_packed_folder(const DataConfig& config,
                                const std::string& folder) {
  data::Splits splits{.train = data::open_split(folder, "train"),
                      .validation = data::open_split(folder, "validation"),
                      .test = data::open_split(folder, "test"),
                      .source = folder};
  for (const auto& split : splits.all()) {
    TORCH_CHECK_VALUE(split->info().task == config.task, folder,
                      ": expected the task ", config.task, ", got ",
                      split->info().task);
  }
  return splits;
}

void pack(const data::Splits& splits, const std::string& folder) {
  const fs::path parent = fs::path(folder).parent_path();
  if (!parent.empty()) fs::create_directories(parent);
  TORCH_CHECK_VALUE(!fs::exists(folder) || fs::is_empty(folder), folder,
                    ": expected packed splits, or a new or empty folder to "
                    "pack them into, got other files");
  io::AtomicFolder made(folder);
  for (size_t i = 0; i < data::kSplitNames.size(); ++i) {
    const std::string name = data::kSplitNames[i];
    data::write_packed(made.file(name + ".luna"), *splits.all()[i],
                       {.split = name, .origin = {{"source", splits.source}}});
  }
  made.commit();
}

}  // namespace

bool is_generated(const std::string& task) {
  return !data::find_task(task).settings.empty();
}

data::Splits open_data(const DataConfig& config, const std::string& fallback,
                       const data::LoadProgress& progress) {
  const bool generated = is_generated(config.task);
  const std::string folder =
      config.path.empty() && generated ? fallback : config.path;
  if (is_packed(folder)) return open_packed_folder(config, folder);
  data::Splits splits =
      data::load_task(config.task, {.folder = generated ? "" : folder,
                                    .samples = config.samples,
                                    .settings = config.settings,
                                    .progress = progress});
  if (!generated || folder.empty()) return splits;
  pack(splits, folder);
  return open_packed_folder(config, folder);
}

}  // namespace luna::train
