#pragma once

#include <luna/data/splits.h>
#include <luna/data/tasks.h>
#include <luna/train/train_config.h>

#include <string>

namespace luna::train {

/// The data of a run:
///
///   packed splits in `path`, as luna data pack writes them: opened;
///   other files in `path`: read as the task's own;
///   nothing there, and a task that is generated: made, packed into `path` (or,
///   without one, into `fallback`) and opened from there the next time.
///
/// If both are empty, nothing is written.
data::Splits open_data(const DataConfig& config, const std::string& fallback,
                       const data::LoadProgress& progress = {});

/// The same; translation is opened from a folder of luna data translation, and
/// a run that starts from a Hugging Face folder reads one of GLUE's
/// tasks with that folder's tokenizer, from the tsv files in `path`.
data::Splits open_data(const TrainConfig& config, const std::string& fallback,
                       const data::LoadProgress& progress = {});

/// What open_data will give, found out without reading or making samples.
struct DataPlan {
  /// Of the packed splits; if there are none, of the task.
  data::TaskFacts facts{};
  std::string note{};  ///< empty, or what is not there and how it is made
};
DataPlan plan_data(const DataConfig& config, const std::string& fallback);
DataPlan plan_data(const TrainConfig& config, const std::string& fallback);

/// What a folder of many tasks' data calls this one: the task's name, or, of
/// translation, of which there are many data sets, that of the folder in
/// `path`.
std::string data_set_name(const DataConfig& config);

/// Empty, or which splits have fewer samples than the config asks for.
std::string shortfall(const DataConfig& config,
                      const std::array<int64_t, 3>& samples);

/// In the order of kSplitNames.
std::array<int64_t, 3> sizes(const data::Splits& splits);

}  // namespace luna::train
