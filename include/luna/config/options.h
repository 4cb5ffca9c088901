#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

// Options of attention mechanisms. Each is a field of a plain struct, named
// and explained once, in the struct's `visit`; the functions here turn that
// into help, checks and maps from names to values.

namespace luna::config {

using OptionValue = std::variant<bool, int64_t, double, std::string>;
using OptionMap = std::map<std::string, OptionValue>;

/// What is to be known of one option.
struct OptionInfo {
  std::string name{};
  std::string help{};
  std::optional<double> minimum{};     ///< numbers: the least allowed
  std::optional<double> maximum{};     ///< numbers: the greatest allowed
  std::vector<std::string> choices{};  ///< strings: what is allowed
  OptionValue default_value{};
};

/// As it is written in help and messages: true, 8, 0.5, softplus.
std::string to_string(const OptionValue& value);
/// bool, integer, number or string.
std::string type_name(const OptionValue& value);

/// "a, b, c (nearest: b)": the end of a message about an unknown `name`.
std::string known_and_nearest(const std::string& name,
                              const std::vector<std::string>& known);

/// Refuses a name in `values` that none of `known` has.
void check_option_names(const std::string& owner,
                        const std::vector<OptionInfo>& known,
                        const OptionMap& values);
/// Refuses a value outside the option's range or choices.
void check_option_value(const std::string& owner, const OptionInfo& info,
                        const OptionValue& value);
/// `value` as the type of `like` (an integer may stand for a number).
OptionValue convert_option(const std::string& owner, const std::string& name,
                           const OptionValue& value, const OptionValue& like);

/// All options of a struct, with their defaults.
template <class Options>
std::vector<OptionInfo> describe_options() {
  std::vector<OptionInfo> all;
  const Options defaults;
  Options::visit(defaults, [&](const auto& field, OptionInfo info) {
    info.default_value = field;
    all.push_back(std::move(info));
  });
  return all;
}

/// Refuses a struct with a value out of range.
template <class Options>
void check_options(const std::string& owner, const Options& options) {
  Options::visit(options, [&](const auto& field, const OptionInfo& info) {
    check_option_value(owner, info, field);
  });
}

/// The struct that `values` describe; an option it does not have is an error.
template <class Options>
Options read_options(const std::string& owner, const OptionMap& values) {
  check_option_names(owner, describe_options<Options>(), values);
  Options options;
  Options::visit(options, [&](auto& field, const OptionInfo& info) {
    using Field = std::remove_reference_t<decltype(field)>;
    const auto found = values.find(info.name);
    if (found == values.end()) return;
    field =
        std::get<Field>(convert_option(owner, info.name, found->second, field));
  });
  check_options(owner, options);
  return options;
}

/// The map that describes the struct.
template <class Options>
OptionMap write_options(const Options& options) {
  OptionMap values;
  Options::visit(options, [&](const auto& field, const OptionInfo& info) {
    values[info.name] = field;
  });
  return values;
}

}  // namespace luna::config
