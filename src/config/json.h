#pragma once

#include <luna/config/options.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

// Configs as JSON. A config is an aggregate with a `visit` that names and
// explains each field once (luna/config/options.h). A field is a bool, an
// int64_t, a double, a string, an OptionMap, or a config of its own.

namespace luna::config {

/// JSON text, comments allowed. An error names `origin`, line and column.
nlohmann::ordered_json parse_json(const std::string& text,
                                  const std::string& origin);

/// What somebody typed as a value: JSON, a number such as .1, or else a string.
nlohmann::ordered_json typed_value(const std::string& text);

/// Puts "model.width=128" into `json`, the value as typed_value reads it.
void set_value(nlohmann::ordered_json& json, const std::string& assignment);

namespace detail {
template <class Field>
concept Nested = requires(Field& field) {
  Field::visit(field, [](auto&&, const OptionInfo&) {});
};
OptionValue to_option_value(const std::string& where,
                            const nlohmann::ordered_json& json);
nlohmann::ordered_json to_json(const OptionValue& value);
nlohmann::ordered_json to_json(const OptionMap& values);
void read_map(const std::string& where, const nlohmann::ordered_json& json,
              OptionMap& values);
void check_keys(const std::string& where, const nlohmann::ordered_json& json,
                const std::vector<std::string>& known);
}  // namespace detail

/// The names of a config's own fields.
template <class Config>
std::vector<std::string> field_names() {
  std::vector<std::string> names;
  const Config defaults;
  Config::visit(defaults, [&](const auto&, const OptionInfo& info) {
    names.push_back(info.name);
  });
  return names;
}

/// The config that `json` describes; what it leaves out keeps its default. An
/// unknown key, a wrong type or a value out of range is an error that names
/// the place ("run.json: model: expected a known key, got widht") and, if one
/// is near, the known key. `path`: the object's place in the whole.
template <class Config>
Config read_json(const std::string& origin, const nlohmann::ordered_json& json,
                 const std::string& path = "") {
  const std::string where = path.empty() ? origin : origin + ": " + path;
  detail::check_keys(where, json, field_names<Config>());
  Config config;
  Config::visit(config, [&](auto& field, const OptionInfo& info) {
    using Field = std::remove_cvref_t<decltype(field)>;
    const auto found = json.find(info.name);
    if (found == json.end()) return;
    const std::string key = path.empty() ? info.name : path + "." + info.name;
    if constexpr (detail::Nested<Field>) {
      field = read_json<Field>(origin, *found, key);
    } else if constexpr (std::is_same_v<Field, OptionMap>) {
      detail::read_map(origin + ": " + key, *found, field);
    } else {
      const OptionValue value = convert_option(
          where, info.name,
          detail::to_option_value(origin + ": " + key, *found), field);
      check_option_value(where, info, value);
      field = std::get<Field>(value);
    }
  });
  return config;
}

/// Every field with its value, in the order of `visit`.
template <class Config>
nlohmann::ordered_json write_json(const Config& config) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  Config::visit(config, [&](const auto& field, const OptionInfo& info) {
    using Field = std::remove_cvref_t<decltype(field)>;
    if constexpr (detail::Nested<const Field>) {
      json[info.name] = write_json(field);
    } else if constexpr (std::is_same_v<Field, OptionMap>) {
      json[info.name] = detail::to_json(field);
    } else {
      json[info.name] = detail::to_json(OptionValue(field));
    }
  });
  return json;
}

}  // namespace luna::config
