#include "text/score_lines.h"

#include <c10/util/Exception.h>

#include "text/unicode.h"

namespace luna::text {

bool is_python_space(char32_t c) {
  if (c <= 0x20) return (c >= 0x09 && c <= 0x0D) || c >= 0x1C;
  return c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
         c == 0x202F || c == 0x205F || c == 0x3000;
}

std::vector<std::string_view> python_split(std::string_view text) {
  std::vector<std::string_view> words;
  size_t begin = 0;
  const auto end_word = [&](size_t end) {
    if (end > begin) words.push_back(text.substr(begin, end - begin));
  };
  for (size_t i = 0; i < text.size();) {
    const size_t before = i;
    if (!is_python_space(next_character(text, i))) continue;
    end_word(before);
    begin = i;
  }
  end_word(text.size());
  return words;
}

std::string_view python_rstrip(std::string_view text) {
  size_t end = 0;
  for (size_t i = 0; i < text.size();) {
    if (!is_python_space(next_character(text, i))) end = i;
  }
  return text.substr(0, end);
}

SpacedWords::SpacedWords(const std::vector<std::string_view>& words) {
  for (const std::string_view word : words) {
    if (!ends_.empty()) text_ += ' ';
    text_ += word;
    ends_.push_back(text_.size());
  }
}

void check_lines(const char* function, const Lines& lines,
                 std::span<const Lines> references) {
  TORCH_CHECK_VALUE(!lines.empty(), function,
                    ": expected a line or more, got none");
  TORCH_CHECK_VALUE(!references.empty(), function,
                    ": expected a reference or more, got none");
  const auto check_utf8 = [&](const Lines& all, const char* what) {
    for (size_t i = 0; i < all.size(); ++i) {
      TORCH_CHECK_VALUE(is_utf8(all[i]), function, ": line ", i + 1, " of ",
                        what, ": expected UTF-8, got other bytes");
    }
  };
  check_utf8(lines, "the translation");
  for (const Lines& reference : references) {
    TORCH_CHECK_VALUE(reference.size() == lines.size(), function,
                      ": expected a reference of ", lines.size(),
                      " lines, as the translation has, got ", reference.size());
    check_utf8(reference, "a reference");
  }
}

}  // namespace luna::text
