#pragma once

#include <luna/data/splits.h>
#include <luna/train/train_config.h>

#include <string>

namespace luna::train {

/// The data of a run:
///
///   packed splits in `path`, as luna data pack writes them: opened;
///   a task that is generated: made, packed into `path` (or, if that is
///   empty, into `fallback`) and opened from there the next time;
///   any other: read from its own files in `path`.
///
/// If both folders are empty strings, nothing is written.
data::Splits open_data(const DataConfig& config, const std::string& fallback,
                       const data::LoadProgress& progress = {});

/// Whether open_data would write into a folder.
bool is_generated(const std::string& task);

}  // namespace luna::train
