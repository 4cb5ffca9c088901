// What BLEU and chrF share.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "luna/text/bleu.h"

namespace luna::text {

/// White space as Python's str.split has it.
bool is_python_space(char32_t c);

/// What white space separates.
std::vector<std::string_view> python_split(std::string_view text);
/// Without the white space at the end.
std::string_view python_rstrip(std::string_view text);

/// Words with one space between them; an n-gram is a piece of the text.
class SpacedWords {
 public:
  explicit SpacedWords(const std::vector<std::string_view>& words);

  int64_t size() const { return std::ssize(ends_); }
  /// Words first ... first + n - 1.
  std::string_view ngram(int64_t first, int64_t n) const {
    const size_t begin = first == 0 ? 0 : ends_[first - 1] + 1;
    return std::string_view(text_).substr(begin, ends_[first + n - 1] - begin);
  }

 private:
  std::string text_{};
  std::vector<size_t> ends_{};
};

/// Refuses references of another length and lines that are not UTF-8.
void check_lines(const char* function, const Lines& lines,
                 std::span<const Lines> references);

}  // namespace luna::text
