#pragma once

#include <string>
#include <vector>

namespace luna::cli {

/// What a config makes: model, parameters by part, schedule.
void print_config(const std::string& path,
                  const std::vector<std::string>& overrides, bool json);

}  // namespace luna::cli
