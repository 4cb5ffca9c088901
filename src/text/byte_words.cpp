#include "text/byte_words.h"

#include <algorithm>
#include <numeric>

#include "text/unicode.h"

namespace luna::text {
namespace {

WordClass class_at(std::string_view text, size_t position, size_t& behind) {
  behind = position;
  const auto byte = static_cast<uint8_t>(text[position]);
  if (byte >= 0x80) return word_class_of(next_character(text, behind));
  static const auto ascii = [] {
    std::array<WordClass, 0x80> classes{};
    for (char32_t c = 0; c < 0x80; ++c) classes[c] = word_class_of(c);
    return classes;
  }();
  ++behind;
  return ascii[byte];
}

/// Where the characters of one class end that begin at `position`.
size_t end_of_run(std::string_view text, size_t position, WordClass kind) {
  size_t behind = 0;
  while (position < text.size() && class_at(text, position, behind) == kind) {
    position = behind;
  }
  return position;
}

/// Bytes of the contraction that the text begins with; 0 if there is none.
size_t contraction(std::string_view text) {
  for (const std::string_view c :
       {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"}) {
    if (text.starts_with(c)) return c.size();
  }
  return 0;
}

std::array<char32_t, 256> byte_characters() {
  std::array<char32_t, 256> characters{};
  char32_t next = 0x100;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool printable =
        (byte > ' ' && byte < 0x7F) || (byte > 0xA0 && byte != 0xAD);
    characters[byte] = printable ? byte : next++;
  }
  return characters;
}

}  // namespace

std::string_view next_byte_word(std::string_view text, size_t& position) {
  const size_t begin = position;
  size_t behind = 0;
  WordClass kind = class_at(text, begin, behind);
  if (text[begin] == '\'') {
    if (const size_t size = contraction(text.substr(begin)); size > 0) {
      position = begin + size;
      return text.substr(begin, size);
    }
  }
  size_t last = begin;  // where the last character of the white space begins
  if (kind == WordClass::kSpace) {
    size_t end = behind;
    while (end < text.size() &&
           class_at(text, end, behind) == WordClass::kSpace) {
      last = end;
      end = behind;
    }
    const bool at_end = end == text.size();
    // The last space goes with the word behind it.
    const bool joined = !at_end && last == begin && text[begin] == ' ';
    if (!joined) {
      position = at_end || last == begin ? end : last;
      return text.substr(begin, position - begin);
    }
    kind = class_at(text, end, behind);
  }
  position = end_of_run(text, behind, kind);
  return text.substr(begin, position - begin);
}

const std::array<std::string, 256>& byte_letters() {
  static const auto letters = [] {
    std::array<std::string, 256> result;
    const auto characters = byte_characters();
    for (int i = 0; i < 256; ++i) append_utf8(characters[i], result[i]);
    return result;
  }();
  return letters;
}

const std::array<uint8_t, 256>& bytes_by_letter() {
  static const auto order = [] {
    std::array<uint8_t, 256> result;
    std::iota(result.begin(), result.end(), uint8_t{0});
    const auto characters = byte_characters();
    std::ranges::sort(result, {}, [&](uint8_t b) { return characters[b]; });
    return result;
  }();
  return order;
}

}  // namespace luna::text
