// What tokenizers and BLEU ask of a character. The answers are those of PyPI's
// packages (scripts/unicode-data says why).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace luna::text {

enum CharacterFlag : uint16_t {
  kRemoved = 1 << 0,      ///< control and format characters, U+0000, U+FFFD
  kSpace = 1 << 1,        ///< becomes ' ' when text is cleaned
  kSeparator = 1 << 2,    ///< white space between words
  kChinese = 1 << 3,      ///< a word of its own: CJK ideographs
  kPunctuation = 1 << 4,  ///< a word of its own
  kAccent = 1 << 5,       ///< category Mn
  kDecomposes = 1 << 6,
  kHasLower = 1 << 7,
};

/// Flags, and from bit 8 on the canonical combining class.
uint16_t properties_of(char32_t c);
inline int combining_class(uint16_t properties) { return properties >> 8; }

/// What the regular expression of byte-level BPE tells apart.
enum class WordClass : uint8_t { kOther, kLetter, kNumber, kSpace };
WordClass word_class_of(char32_t c);

/// What BLEU's international tokens tell apart.
enum class BleuClass : uint8_t { kOther, kNumber, kPunctuation, kSymbol };
BleuClass bleu_class_of(char32_t c);

/// Up to four characters; the first `size` count.
struct Characters {
  std::array<char32_t, 4> values{};
  int size = 0;

  const char32_t* begin() const { return values.data(); }
  const char32_t* end() const { return values.data() + size; }
};

/// The full canonical decomposition, not reordered; c itself if it has none.
Characters decompose(char32_t c);
/// What both are canonically composed to; 0 if to nothing.
char32_t compose(char32_t first, char32_t second);
Characters to_lower(char32_t c);

/// The character that starts at `position`, which moves behind it. A byte that
/// is not UTF-8 reads as U+FFFD.
char32_t next_character(std::string_view text, size_t& position);
bool is_utf8(std::string_view text);
void append_utf8(char32_t c, std::string& text);

}  // namespace luna::text
