#include <c10/util/Exception.h>
#include <luna/data/memory_dataset.h>

#include <filesystem>

#include "data/loaders.h"
#include "data/source_files.h"

// Pairs of papers of the ACL Anthology Network, as the Long Range Arena's
// release has them: label, id, id, text, text.

namespace luna::data {
namespace {

std::shared_ptr<Dataset> read_pairs(const std::string& path,
                                    const TaskInfo& info, int64_t max_length) {
  auto data = std::make_shared<MemoryDataset>(info);
  read_tsv(path, read_source(path), 5, [&](const TsvLine& line) {
    const auto& c = line.columns;
    TORCH_CHECK_VALUE(c[4].find('\t') == std::string_view::npos, line.where,
                      ": expected 5 columns with tabs between them, got more");
    data->add({.ids = text_ids(c[3], max_length),
               .second = text_ids(c[4], max_length),
               .label = parse_label(line.where, c[0], info.classes)});
  });
  return data;
}

}  // namespace

Splits load_retrieval(const Task& task, const LoadOptions& options) {
  const std::string first = "new_aan_pairs.train.tsv";
  const FoundSource found =
      find_source(task.name, options.folder,
                  {{"pairs of AAN",
                    first,
                    {"", "tsv_data", "lra_release/tsv_data",
                     "lra_release/lra_release/tsv_data"}}},
                  task.how);
  const int64_t length = kept_length(task, options);
  const auto read = [&](double done, const std::string& name) {
    if (options.progress) options.progress(done, "reading " + name);
    const std::filesystem::path path =
        std::filesystem::path(found.folder) / name;
    return read_pairs(path.string(), task.info, length);
  };
  return {.train = read(0.0, first),
          .validation = read(0.8, "new_aan_pairs.eval.tsv"),
          .test = read(0.9, "new_aan_pairs.test.tsv"),
          .source = "AAN (lra_release)"};
}

}  // namespace luna::data
