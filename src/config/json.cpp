#include "config/json.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace luna::config {

using Json = nlohmann::ordered_json;

namespace {

constexpr int kMaxDepth = 64;

/// The parser's text without its names for itself and for the place:
/// "unexpected '}'; expected string literal".
std::string reason_of(const Json::exception& error) {
  std::string why = error.what();
  for (const char* before : {"] ", " - "}) {
    const size_t found = why.find(before);
    if (found != std::string::npos) {
      why = why.substr(found + std::string(before).size());
    }
  }
  return why;
}

/// JSON, a number as people type it (.1), or else a string.
Json value_of(const std::string& text) {
  Json parsed = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_discarded()) return parsed;
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, number);
  if (read.ec == std::errc() && read.ptr == end && std::isfinite(number)) {
    return number;
  }
  return text;
}

}  // namespace

Json parse_json(const std::string& text, const std::string& origin) {
  // What shows or flattens a document calls itself for every level.
  const auto shallow = [&](int depth, Json::parse_event_t, const Json&) {
    TORCH_CHECK_VALUE(depth <= kMaxDepth, origin, ": expected at most ",
                      kMaxDepth, " levels, got more");
    return true;
  };
  try {
    return Json::parse(text, shallow, true, /*ignore_comments=*/true);
  } catch (const Json::parse_error& error) {
    // byte is 1-based and may lie one past the end
    const size_t at =
        std::min(error.byte == 0 ? 0 : error.byte - 1, text.size());
    const auto line = 1 + std::count(text.begin(), text.begin() + at, '\n');
    const size_t before = text.rfind('\n', at == 0 ? 0 : at - 1);
    const size_t column =
        before == std::string::npos || line == 1 ? at + 1 : at - before;
    TORCH_CHECK_VALUE(false, origin, ":", line, ":", column,
                      ": not JSON: ", reason_of(error));
  } catch (const Json::exception& error) {  // a number that no double can hold
    TORCH_CHECK_VALUE(false, origin, ": not JSON: ", reason_of(error));
  }
}

void set_value(Json& json, const std::string& assignment) {
  const size_t equals = assignment.find('=');
  TORCH_CHECK_VALUE(equals != std::string::npos && equals > 0,
                    "--set: expected key=value, such as model.width=128, got ",
                    assignment);
  Json* place = &json;
  const std::string key = assignment.substr(0, equals);
  for (size_t start = 0;;) {
    const size_t dot = key.find('.', start);
    const std::string part = key.substr(start, dot - start);
    TORCH_CHECK_VALUE(!part.empty(),
                      "--set: expected names between the dots of the key, got ",
                      assignment);
    if (place->is_null()) *place = Json::object();
    TORCH_CHECK_VALUE(place->is_object(), "--set ", assignment, ": expected ",
                      start == 0 ? "the config" : key.substr(0, start - 1),
                      " to be an object, got ", place->dump());
    place = &(*place)[part];
    if (dot == std::string::npos) break;
    start = dot + 1;
  }
  *place = value_of(assignment.substr(equals + 1));
}

namespace detail {

OptionValue to_option_value(const std::string& where, const Json& json) {
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_integer()) return json.get<int64_t>();
  if (json.is_number()) return json.get<double>();
  if (json.is_string()) return json.get<std::string>();
  TORCH_CHECK_TYPE(false, where,
                   ": expected a bool, a number or a string, got ",
                   json.dump());
}

Json to_json(const OptionValue& value) {
  return std::visit([](const auto& held) { return Json(held); }, value);
}

Json to_json(const OptionMap& values) {
  Json json = Json::object();
  for (const auto& [name, value] : values) json[name] = to_json(value);
  return json;
}

void read_map(const std::string& where, const Json& json, OptionMap& values) {
  TORCH_CHECK_TYPE(json.is_object(), where, ": expected an object, got ",
                   json.dump());
  for (const auto& [name, value] : json.items()) {
    values[name] = to_option_value(where + "." + name, value);
  }
}

void check_keys(const std::string& where, const Json& json,
                const std::vector<std::string>& known) {
  TORCH_CHECK_TYPE(json.is_object(), where, ": expected an object, got ",
                   json.dump());
  for (const auto& [key, value] : json.items()) {
    TORCH_CHECK_VALUE(std::find(known.begin(), known.end(), key) != known.end(),
                      where, ": expected a known key, got ", key, "; it has ",
                      known_and_nearest(key, known));
  }
}

}  // namespace detail
}  // namespace luna::config
