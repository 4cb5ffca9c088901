#include "config/check_options.h"

namespace luna::config {

void check_option_map(const std::string& owner,
                      const std::vector<OptionInfo>& known,
                      const OptionMap& values) {
  check_option_names(owner, known, values);
  for (const OptionInfo& info : known) {
    const auto given = values.find(info.name);
    if (given == values.end()) continue;
    check_option_value(
        owner, info,
        convert_option(owner, info.name, given->second, info.default_value));
  }
}

}  // namespace luna::config
