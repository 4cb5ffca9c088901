// BERT's normaliser and the cut into words.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "luna/text/wordpiece.h"

namespace luna::text {

/// A normalised character and the character of the text that it stands for.
struct Character {
  char32_t value = 0;
  uint32_t source = 0;
};

/// `text` begins with the text's character number `source`.
void normalize(std::string_view text, uint32_t source,
               const BertNormalizerOptions& options,
               std::vector<Character>& result);

/// The word that begins at or behind `position`, which moves behind it; empty
/// if there is none. A word has no white space, and punctuation stands alone.
struct Word {
  size_t begin = 0, end = 0;
};
Word next_word(const std::vector<Character>& characters, size_t& position);

}  // namespace luna::text
