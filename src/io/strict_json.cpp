#include "io/strict_json.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace luna::io {
namespace {

constexpr size_t kMaxToken = size_t{4} << 20;
constexpr size_t kMaxKept = size_t{24} << 20;
constexpr size_t kMaxShown = 100;

/// The parser copies a token, and the space before it, before any handler
/// sees it.
void check_tokens(std::string_view text, const std::string& where) {
  bool in_string = false;
  bool escaped = false;
  size_t start = 0;  // of the token
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    TORCH_CHECK_VALUE(c != '\0', where, ": expected JSON, got a NUL byte at ",
                      i);
    if (escaped) {
      escaped = false;
    } else if (c == '"') {
      in_string = !in_string;
      start = i;
    } else if (in_string) {
      escaped = c == '\\';
    } else if (c == ',' || c == ':' || c == '[' || c == ']' || c == '{' ||
               c == '}') {
      start = i;
    }
    TORCH_CHECK_VALUE(i - start <= kMaxToken, where,
                      ": expected strings and numbers of at most ", kMaxToken,
                      " bytes, got a longer one at ", start);
  }
}

}  // namespace

std::string in_quotes(std::string_view text) {
  const bool cut = text.size() > kMaxShown;
  return nlohmann::json(text.substr(0, kMaxShown))
             .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) +
         (cut ? "..." : "");
}

void StrictJson::parse(std::string_view text) {
  check_tokens(text, where_);
  nlohmann::json::sax_parse(text.begin(), text.end(), this);
}

bool StrictJson::number_integer(number_integer_t value) {
  refuse(std::to_string(value));
}

bool StrictJson::number_unsigned(number_unsigned_t value) {
  refuse(std::to_string(value));
}

bool StrictJson::number_float(number_float_t, const string_t& text) {
  refuse(text.substr(0, kMaxShown));
}

bool StrictJson::string(string_t& value) { refuse(in_quotes(value)); }

bool StrictJson::parse_error(size_t position, const std::string&,
                             const nlohmann::detail::exception& error) {
  // "[json.exception.parse_error.101] parse error at ...: why; last read: ..."
  std::string why = error.what();
  if (const size_t last = why.find("; last read: ");
      last != std::string::npos) {
    why.resize(last);
  }
  for (const char* before : {"] ", ": "}) {
    if (const size_t at = why.find(before); at != std::string::npos) {
      why = why.substr(at + std::char_traits<char>::length(before));
    }
  }
  TORCH_CHECK_VALUE(false, where_, ": ", place(),
                    ": expected JSON, got at byte ", position, " ",
                    why.substr(0, 2 * kMaxShown));
}

void StrictJson::refuse(const std::string& got) const {
  refuse(place(), expected(), got);
}

void StrictJson::refuse(const std::string& place, const std::string& expected,
                        const std::string& got) const {
  TORCH_CHECK_VALUE(false, where_, ": ", place, ": expected ", expected,
                    ", got ", got);
}

void StrictJson::keep(size_t bytes) {
  kept_ += bytes;
  TORCH_CHECK_VALUE(kept_ <= kMaxKept, where_, ": ", place(),
                    ": expected what fits ", kMaxKept >> 20,
                    " MiB of memory, got more names and strings than that");
}

}  // namespace luna::io
