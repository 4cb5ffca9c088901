// Typed fields of a JSON object from a file that nobody vouches for; an error
// names file, field, what was expected and what is there.
#pragma once

#include <c10/util/Exception.h>

#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "io/strict_json.h"

namespace luna::io {

/// Json: nlohmann::json or ordered_json. A view: the document must live on.
/// A field that is null counts as missing.
template <class Json>
class JsonFields {
 public:
  /// `where`: the file, then perhaps the field that holds the object.
  JsonFields(const Json& json, std::string where)
      : json_(&json), where_(std::move(where)) {
    TORCH_CHECK_VALUE(json.is_object(), where_, ": expected an object, got ",
                      shown(json));
  }

  const std::string& where() const { return where_; }
  std::string place(const std::string& name) const {
    return where_ + ": " + name;
  }

  const Json* find(const std::string& name) const {
    const auto found = json_->find(name);
    return found == json_->end() || found->is_null() ? nullptr : &*found;
  }
  bool has(const std::string& name) const { return find(name) != nullptr; }
  const Json& get(const std::string& name, const char* expected) const {
    const Json* value = find(name);
    TORCH_CHECK_VALUE(value != nullptr, place(name), ": expected ", expected,
                      ", got none");
    return *value;
  }

  JsonFields object(const std::string& name) const {
    return JsonFields(get(name, "an object"), place(name));
  }

  std::optional<std::string> text(const std::string& name) const {
    const Json* value = find(name);
    if (value == nullptr) return std::nullopt;
    check(value->is_string(), name, "a string", *value);
    return value->template get<std::string>();
  }

  std::optional<bool> boolean(const std::string& name) const {
    const Json* value = find(name);
    if (value == nullptr) return std::nullopt;
    check(value->is_boolean(), name, "true or false", *value);
    return value->template get<bool>();
  }

  std::optional<int64_t> integer(const std::string& name, int64_t least,
                                 int64_t most) const {
    const Json* value = find(name);
    if (value == nullptr) return std::nullopt;
    return integer_of(*value, place(name), least, most);
  }

  /// Of one JSON value, such as an array's.
  static int64_t integer_of(const Json& value, const std::string& place,
                            int64_t least, int64_t most) {
    const bool fits =
        value.is_number_unsigned()
            ? std::cmp_less_equal(value.template get<uint64_t>(), most) &&
                  std::cmp_greater_equal(value.template get<uint64_t>(), least)
            : value.is_number_integer() &&
                  value.template get<int64_t>() >= least &&
                  value.template get<int64_t>() <= most;
    TORCH_CHECK_VALUE(fits, place, ": expected a whole number from ", least,
                      " to ", most, ", got ", shown(value));
    return value.template get<int64_t>();
  }

  std::optional<double> number(const std::string& name, double least,
                               double most) const {
    const Json* value = find(name);
    if (value == nullptr) return std::nullopt;
    const double number =
        value->is_number() ? value->template get<double>() : NAN;
    TORCH_CHECK_VALUE(number >= least && number <= most, place(name),
                      ": expected a number from ", least, " to ", most,
                      ", got ", shown(*value));
    return number;
  }

  /// What was got, as a message shows it.
  static std::string shown(const Json& json) {
    if (json.is_object()) return "an object";
    if (json.is_array()) return "an array";
    if (json.is_string()) {
      return in_quotes(json.template get_ref<const std::string&>());
    }
    return json.dump();
  }

 private:
  void check(bool good, const std::string& name, const char* expected,
             const Json& value) const {
    TORCH_CHECK_VALUE(good, place(name), ": expected ", expected, ", got ",
                      shown(value));
  }

  const Json* json_;
  std::string where_;
};

}  // namespace luna::io
