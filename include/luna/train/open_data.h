#pragma once

#include <luna/data/splits.h>
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

}  // namespace luna::train
