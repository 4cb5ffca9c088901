#pragma once

#include <luna/train/train_config.h>

#include <nlohmann/json.hpp>

namespace luna::train {

/// A config as far as a run's result hangs on it: every key ("/model/width")
/// with its value, an option that is not given with its default. Not the name,
/// nor where the data lies, nor `patience`, which ends a run after its best
/// weights, nor `repeatable`, the order of sums alone.
nlohmann::ordered_json result_key(TrainConfig config);

}  // namespace luna::train
