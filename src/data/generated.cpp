#include <c10/util/Exception.h>
#include <luna/data/listops.h>
#include <luna/data/memory_dataset.h>
#include <luna/data/needles.h>
#include <luna/data/pathfinder.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <utility>

#include "data/loaders.h"
#include "data/source_files.h"
#include "data/subsets.h"

// The tasks that are generated, and ListOps as the Long Range Arena's release
// has it.

namespace luna::data {
namespace {

using Generate = std::function<std::shared_ptr<Dataset>(
    int64_t samples, const GenerateProgress &progress)>;

/// One set, cut into the splits: what differs within it differs across them.
Splits generate_splits(const Task &task, const LoadOptions &options,
                       const Generate &generate) {
  std::array<int64_t, 3> sizes = task.samples;
  if (options.samples > 0) {
    for (int64_t &size : sizes) size = std::min(size, options.samples);
  }
  const int64_t total = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  const auto whole = generate(total, [&](int64_t done, int64_t all) {
    if (!options.progress) return;
    options.progress(static_cast<double>(done) / static_cast<double>(all),
                     "generating " + task.name);
  });
  std::vector<int64_t> indices(total);
  std::iota(indices.begin(), indices.end(), int64_t{0});
  std::span<const int64_t> left = indices;
  const auto take = [&](int64_t count) {
    const auto part = subset(*whole, left.first(count));
    left = left.subspan(count);
    return part;
  };
  Splits splits{.source = "generated"};
  splits.train = take(sizes[0]);
  splits.validation = take(sizes[1]);
  splits.test = take(sizes[2]);
  return splits;
}

void refuse_folder(const Task &task, const LoadOptions &options) {
  TORCH_CHECK_VALUE(options.folder.empty(), task.name,
                    ": --data: expected none, as it is generated, got ",
                    options.folder);
}

/// Columns Source and Target, named in the first line.
std::shared_ptr<Dataset> read_listops(const std::string &path,
                                      const TaskInfo &info) {
  auto data = std::make_shared<MemoryDataset>(info);
  bool named = false;
  read_tsv(path, read_source(path), 2, [&](const TsvLine &line) {
    const auto &c = line.columns;
    if (!std::exchange(named, true)) {
      TORCH_CHECK_VALUE(c[0] == "Source" && c[1] == "Target", line.where,
                        ": expected the columns Source and Target, got \"",
                        c[0].substr(0, 40), "\" and \"", c[1].substr(0, 40),
                        "\"");
      return;
    }
    std::vector<uint8_t> ids;
    try {
      ids = listops_ids(c[0]);
    } catch (const c10::Error &error) {
      TORCH_CHECK_VALUE(false, line.where, ": ",
                        error.what_without_backtrace());
    }
    TORCH_CHECK_VALUE(!ids.empty(), line.where,
                      ": Source: expected an expression, got none");
    data->add(
        {.ids = ids,
         .label = parse_label(line.where + ": Target", c[1], info.classes)});
  });
  TORCH_CHECK_VALUE(data->size() > 0, path,
                    ": expected samples after the names of the columns, got "
                    "none");
  return data;
}

/// The preset's options with the other settings put over them.
PathfinderOptions pathfinder_options(const config::OptionMap &settings) {
  std::string preset = "32-hard";
  config::OptionMap given = settings;
  if (const auto found = given.find("preset"); found != given.end()) {
    preset = config::to_string(found->second);
    given.erase(found);
  }
  config::OptionMap values = config::write_options(pathfinder_preset(preset));
  for (const auto &[name, value] : given) values[name] = value;
  return config::read_options<PathfinderOptions>("pathfinder", values);
}

}  // namespace

Splits load_listops(const Task &task, const LoadOptions &options) {
  if (options.folder.empty()) {
    const auto settings =
        config::read_options<ListOpsOptions>(task.name, options.settings);
    return generate_splits(task, options, [&](int64_t n, const auto &progress) {
      return generate_listops(settings, n, options.seed, progress);
    });
  }
  TORCH_CHECK_VALUE(options.settings.empty(), task.name,
                    ": expected no settings of the generator beside a folder "
                    "to read, got ",
                    options.settings.begin()->first);
  const FoundSource found =
      find_source(task.name, options.folder,
                  {{"ListOps of the Long Range Arena",
                    "basic_train.tsv",
                    {"", "listops-1000", "lra_release/listops-1000",
                     "lra_release/lra_release/listops-1000"}}},
                  task.how);
  const auto read = [&](double done, const std::string &name) {
    if (options.progress) options.progress(done, "reading " + name);
    return read_listops((std::filesystem::path(found.folder) / name).string(),
                        task.info);
  };
  return {.train = read(0.0, "basic_train.tsv"),
          .validation = read(0.9, "basic_val.tsv"),
          .test = read(0.95, "basic_test.tsv"),
          .source = "ListOps (lra_release)"};
}

Splits load_needles(const Task &task, const LoadOptions &options) {
  refuse_folder(task, options);
  const auto settings =
      config::read_options<NeedlesOptions>(task.name, options.settings);
  return generate_splits(task, options, [&](int64_t n, const auto &progress) {
    return generate_needles(settings, n, options.seed, progress);
  });
}

std::vector<config::OptionInfo> pathfinder_settings() {
  std::vector<config::OptionInfo> all = {
      {.name = "preset",
       .help = "what all others start from",
       .choices = pathfinder_presets(),
       .default_value = std::string("32-hard")}};
  for (auto &info : config::describe_options<PathfinderOptions>()) {
    all.push_back(std::move(info));
  }
  return all;
}

Splits load_pathfinder(const Task &task, const LoadOptions &options) {
  refuse_folder(task, options);
  const PathfinderOptions settings = pathfinder_options(options.settings);
  return generate_splits(task, options, [&](int64_t n, const auto &progress) {
    return generate_pathfinder(settings, n, options.seed, progress);
  });
}

void adjust_listops(const config::OptionMap &settings, TaskFacts &facts) {
  // Kept expressions have fewer symbols than max_length.
  facts.longest =
      config::read_options<ListOpsOptions>("listops", settings).max_length - 1;
}

void adjust_needles(const config::OptionMap &settings, TaskFacts &facts) {
  facts.longest =
      config::read_options<NeedlesOptions>("needles", settings).length;
}

void adjust_pathfinder(const config::OptionMap &settings, TaskFacts &facts) {
  const int64_t window = pathfinder_options(settings).window;
  facts.info.height = facts.info.width = window;
  facts.longest = window * window;
}

}  // namespace luna::data
