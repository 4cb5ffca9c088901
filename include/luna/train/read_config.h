#pragma once

#include <luna/train/run_folder.h>
#include <luna/train/train_config.h>

#include <string>
#include <vector>

namespace luna::train {

/// The config in a JSON file (comments allowed), with `overrides` such as
/// model.width=128 put over it. It must say what is learnt and by which
/// mechanism, and make sense as a whole. Errors name the file, the place in it
/// and, for an unknown key, a known one that is near; those that an override
/// brought in begin with "--set".
TrainConfig read_train_config(const std::string& path,
                              const std::vector<std::string>& overrides = {});

/// The config of a run to go on with. Overrides may change what the steps that
/// are done do not hang on: how often to log and to save, patience, and the
/// number of steps where the schedule does not depend on it.
TrainConfig read_resumed_config(const RunFolder& run,
                                const std::vector<std::string>& overrides);

/// What is allowed but hardly meant.
std::vector<std::string> config_warnings(const TrainConfig& config);

/// Every key of a config ("model.width") with its meaning and default, in the
/// order of the structs; the default of a key that must be there: "required".
std::vector<config::OptionInfo> config_keys();

}  // namespace luna::train
