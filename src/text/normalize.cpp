#include "text/normalize.h"

#include <algorithm>

#include "text/unicode.h"

namespace luna::text {
namespace {

/// Canonical decomposition without accents (category Mn).
///
/// The first character of a decomposition stands for the next character of the
/// input, the others for the same: so tokenizers counts, even where sorting
/// by combining class has changed the order of the characters.
class AccentStripper {
 public:
  AccentStripper(const std::vector<Character>& input,
                 std::vector<Character>& result)
      : input_(input), result_(result) {}

  void run() {
    for (const Character& c : input_) {
      if (properties_of(c.value) & kDecomposes) {
        bool first = true;
        for (const char32_t part : decompose(c.value)) {
          take(part, first);
          first = false;
        }
      } else {
        take(c.value, true);
      }
    }
    sort_pending();
  }

 private:
  struct Pending {
    char32_t value;
    uint16_t properties;
    bool first;
  };

  void take(char32_t value, bool first) {
    const Pending next{value, properties_of(value), first};
    if (combining_class(next.properties) != 0) {
      pending_.push_back(next);
      return;
    }
    sort_pending();
    put(next);
  }

  void sort_pending() {
    std::ranges::stable_sort(pending_, {}, [](const Pending& p) {
      return combining_class(p.properties);
    });
    for (const Pending& p : pending_) put(p);
    pending_.clear();
  }

  void put(const Pending& p) {
    if (p.first) ++consumed_;
    if (p.properties & kAccent) return;
    result_.push_back({p.value, input_[consumed_ - 1].source});
  }

  const std::vector<Character>& input_;
  std::vector<Character>& result_;
  std::vector<Pending> pending_{};
  size_t consumed_ = 0;
};

void lower(std::vector<Character>& characters, size_t from) {
  size_t longer = 0;
  for (size_t i = from; i < characters.size(); ++i) {
    char32_t& c = characters[i].value;
    if (c < 0x80) {
      if (c >= 'A' && c <= 'Z') c += 'a' - 'A';
    } else if (properties_of(c) & kHasLower) {
      const Characters small = to_lower(c);
      if (small.size > 1) {
        ++longer;
      } else {
        c = small.values[0];
      }
    }
  }
  if (longer == 0) return;
  // One character has two in lower case: U+0130.
  std::vector<Character> result(characters.begin(), characters.begin() + from);
  for (size_t i = from; i < characters.size(); ++i) {
    for (const char32_t c : to_lower(characters[i].value)) {
      result.push_back({c, characters[i].source});
    }
  }
  characters = std::move(result);
}

}  // namespace

void normalize(std::string_view text, uint32_t source,
               const BertNormalizerOptions& options,
               std::vector<Character>& result) {
  const size_t start = result.size();
  bool plain = true;  // ASCII: nothing that decomposes
  for (size_t i = 0; i < text.size(); ++source) {
    const char32_t c = next_character(text, i);
    if (c > ' ' && c < 0x7F) {
      result.push_back({c, source});
      continue;
    }
    plain &= c < 0x80;
    const uint16_t properties = properties_of(c);
    if (options.clean_text) {
      if (properties & kRemoved) continue;
      if (properties & kSpace) {
        result.push_back({U' ', source});
        continue;
      }
    }
    const bool spaced = options.handle_chinese_chars && properties & kChinese;
    if (spaced) result.push_back({U' ', source});
    result.push_back({c, source});
    if (spaced) result.push_back({U' ', source});
  }
  if (options.strip_accents.value_or(options.lowercase) && !plain) {
    const std::vector<Character> input(result.begin() + start, result.end());
    result.resize(start);
    AccentStripper(input, result).run();
  }
  if (options.lowercase) lower(result, start);
}

Word next_word(const std::vector<Character>& characters, size_t& position) {
  const auto properties = [&](size_t i) {
    return properties_of(characters[i].value);
  };
  while (position < characters.size() && properties(position) & kSeparator) {
    ++position;
  }
  Word word{position, position};
  while (position < characters.size() &&
         !(properties(position) & (kSeparator | kPunctuation))) {
    ++position;
  }
  if (position == word.begin && position < characters.size()) ++position;
  word.end = position;
  return word;
}

}  // namespace luna::text
