#pragma once

#include <luna/config/options.h>

namespace luna::config {

/// Refuses a map with a name that none of `known` has, or with a value of
/// another type or out of range.
void check_option_map(const std::string& owner,
                      const std::vector<OptionInfo>& known,
                      const OptionMap& values);

}  // namespace luna::config
