// JSON from files that nobody vouches for, read event by event: a handler
// refuses at once what does not belong, so depth is bounded by what it takes,
// and memory by what it keeps.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace luna::io {

/// Events of a JSON text. What a handler does not override is refused.
class StrictJson : public nlohmann::json_sax<nlohmann::json> {
 public:
  /// `where` starts every message: the file, and what part of it.
  explicit StrictJson(std::string where) : where_(std::move(where)) {}

  /// Reads one JSON value that fills `text`. Refuses NUL bytes, which the
  /// parser would take for the end, and strings or numbers beyond 4 MiB.
  void parse(std::string_view text);

  bool null() override { refuse("null"); }
  bool boolean(bool value) override { refuse(value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override;
  bool number_unsigned(number_unsigned_t value) override;
  bool number_float(number_float_t value, const string_t& text) override;
  bool string(string_t& value) override;
  bool binary(binary_t&) override { refuse("binary data"); }
  bool start_object(size_t) override { refuse("an object"); }
  bool start_array(size_t) override { refuse("an array"); }
  bool parse_error(size_t position, const std::string& last_token,
                   const nlohmann::detail::exception& error) override;

 protected:
  /// What the handler takes at this place, as a message says it: the field
  /// and what is expected there.
  virtual std::string place() const = 0;
  virtual std::string expected() const = 0;
  /// "WHERE: PLACE: expected EXPECTED, got `got`".
  [[noreturn]] void refuse(const std::string& got) const;
  [[noreturn]] void refuse(const std::string& place,
                           const std::string& expected,
                           const std::string& got) const;
  /// Counts memory that the handler keeps; refuses beyond 24 MiB.
  void keep(size_t bytes);
  const std::string& where() const { return where_; }

 private:
  std::string where_;
  size_t kept_ = 0;
};

/// A string from a file as a message shows it: quoted, escaped, not too long.
std::string in_quotes(std::string_view text);

}  // namespace luna::io
