#pragma once

#include <luna/config/options.h>

#include <string>
#include <vector>

namespace luna::cli {

/// --set's NAME=VALUE as options of `owner`, which are `known`. UsageError for
/// an unknown name or a value that it cannot have.
config::OptionMap read_settings(const std::string& owner,
                                const std::vector<config::OptionInfo>& known,
                                const std::vector<std::string>& assignments);

}  // namespace luna::cli
