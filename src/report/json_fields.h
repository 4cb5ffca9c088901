// Fields of JSON that may be missing, null or of another type.
#pragma once

#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace luna::report {

inline std::optional<double> number_of(const nlohmann::ordered_json& json,
                                       const char* name) {
  const auto found = json.find(name);
  if (found == json.end() || !found->is_number()) return std::nullopt;
  const double value = found->get<double>();
  return std::isfinite(value) ? std::optional(value) : std::nullopt;
}

inline std::optional<std::int64_t> whole_of(const nlohmann::ordered_json& json,
                                            const char* name) {
  const auto found = json.find(name);
  if (found == json.end() || !found->is_number_integer()) return std::nullopt;
  return found->get<std::int64_t>();
}

inline std::optional<std::string> text_of(const nlohmann::ordered_json& json,
                                          const char* name) {
  const auto found = json.find(name);
  if (found == json.end() || !found->is_string()) return std::nullopt;
  return found->get<std::string>();
}

}  // namespace luna::report
