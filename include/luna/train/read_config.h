#pragma once

#include <luna/train/train_config.h>

#include <string>
#include <vector>

namespace luna::train {

/// The config in a JSON file (comments allowed), with `overrides` such as
/// model.width=128 put over it. Errors name the file, the place in it and,
/// for an unknown key, the nearest known one.
TrainConfig read_train_config(const std::string& path,
                              const std::vector<std::string>& overrides = {});

}  // namespace luna::train
