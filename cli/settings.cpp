#include "settings.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>

#include "command.h"
#include "config/json.h"

namespace luna::cli {
namespace {

/// 3, 0.5 and true as what they are, anything else as text.
config::OptionValue option_value(const std::string& text) {
  const auto json = config::typed_value(text);
  return json.is_boolean() || json.is_number()
             ? config::detail::to_option_value("--set", json)
             : text;
}

}  // namespace

config::OptionMap read_settings(const std::string& owner,
                                const std::vector<config::OptionInfo>& known,
                                const std::vector<std::string>& assignments) {
  std::vector<std::string> names;
  for (const config::OptionInfo& info : known) names.push_back(info.name);
  config::OptionMap map;
  for (const std::string& text : assignments) {
    const size_t equals = text.find('=');
    const std::string name = text.substr(0, equals);
    const auto info = std::ranges::find(known, name, &config::OptionInfo::name);
    if (equals == std::string::npos || info == known.end()) {
      throw UsageError(fmt::format(
          "--set: expected NAME=VALUE with {} for {}, got {}",
          names.empty() ? "no name"
                        : "one of " + config::known_and_nearest(name, names),
          owner, text));
    }
    try {
      const config::OptionValue value = config::convert_option(
          owner, name, option_value(text.substr(equals + 1)),
          info->default_value);
      config::check_option_value(owner, *info, value);
      map[name] = value;
    } catch (const c10::Error& error) {
      throw UsageError(std::string("--set: ") + error.what_without_backtrace());
    }
  }
  return map;
}

}  // namespace luna::cli
