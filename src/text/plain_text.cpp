#include "text/plain_text.h"

#include <algorithm>

#include "text/unicode.h"

namespace luna::text {
namespace {

bool is_ascii(std::string_view text) {
  return std::ranges::all_of(
      text, [](char c) { return static_cast<uint8_t>(c) < 0x80; });
}

int class_of(char32_t c) { return combining_class(properties_of(c)); }

/// Decomposed, with marks behind a letter in the order of their classes.
std::u32string to_nfd(std::string_view text) {
  std::u32string result;
  for (size_t i = 0; i < text.size();) {
    for (const char32_t c : decompose(next_character(text, i))) result += c;
  }
  for (auto at = result.begin(); at != result.end();) {
    const auto end = std::find_if(at, result.end(),
                                  [](char32_t c) { return class_of(c) == 0; });
    std::stable_sort(at, end, [](char32_t a, char32_t b) {
      return class_of(a) < class_of(b);
    });
    at = end == result.end() ? end : end + 1;
  }
  return result;
}

struct Replacement {
  char32_t from;
  const char* to;
};
constexpr Replacement kPlain[] = {
    {0x00AB, "\""}, {0x00B4, "'"},   {0x00BB, "\""}, {0x2010, "-"},
    {0x2011, "-"},  {0x2012, "-"},   {0x2013, "-"},  {0x2014, "-"},
    {0x2015, "-"},  {0x2018, "'"},   {0x2019, "'"},  {0x201A, "'"},
    {0x201B, "'"},  {0x201C, "\""},  {0x201D, "\""}, {0x201E, "\""},
    {0x201F, "\""}, {0x2026, "..."}, {0x2039, "'"},  {0x203A, "'"},
    {0x2212, "-"}};

}  // namespace

std::string to_nfc(std::string_view text) {
  if (is_ascii(text)) return std::string(text);
  std::u32string composed;
  size_t starter = 0;  // + 1: the last character of class 0; 0: none yet
  int last_class = 0;  // of the character before, if it is not the starter
  for (const char32_t c : to_nfd(text)) {
    const int c_class = class_of(c);
    // A mark of the same or a higher class in between blocks.
    const bool next_to = starter == composed.size();
    const bool blocked = !next_to && last_class >= c_class;
    if (starter > 0 && !blocked) {
      const char32_t both = compose(composed[starter - 1], c);
      if (both != 0) {
        composed[starter - 1] = both;
        continue;
      }
    }
    composed += c;
    last_class = c_class;
    if (c_class == 0) starter = composed.size();
  }
  std::string result;
  for (const char32_t c : composed) append_utf8(c, result);
  return result;
}

std::string squeeze_space(std::string_view text) {
  std::string result;
  bool space = false;
  for (size_t i = 0; i < text.size();) {
    const size_t before = i;
    if (word_class_of(next_character(text, i)) == WordClass::kSpace) {
      space = !result.empty();
      continue;
    }
    if (space) result += ' ';
    space = false;
    result += text.substr(before, i - before);
  }
  return result;
}

std::string plain_punctuation(std::string_view text) {
  if (is_ascii(text)) return std::string(text);
  std::string result;
  for (size_t i = 0; i < text.size();) {
    const size_t before = i;
    const char32_t c = next_character(text, i);
    const auto* const found = std::ranges::find(kPlain, c, &Replacement::from);
    if (found != std::end(kPlain)) {
      result += found->to;
    } else {
      result += text.substr(before, i - before);
    }
  }
  return result;
}

}  // namespace luna::text
