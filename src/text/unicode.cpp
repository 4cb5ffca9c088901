#include "text/unicode.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

namespace luna::text {
namespace {

struct Range {
  char32_t first, last;
  uint16_t value;
};

/// What a character becomes; unused places are 0.
struct Mapping {
  char32_t from;
  char32_t to[4] = {};
};

struct Composition {
  char32_t first, second, composed;
};

#include "text/unicode_data.inc"

constexpr char32_t kCharacters = 0x110000;
constexpr char32_t kBlock = 256;

// Hangul syllables are decomposed by arithmetic (Unicode, section 3.12).
constexpr char32_t kSyllables = 0xAC00, kLeads = 0x1100, kVowels = 0x1161,
                   kTails = 0x11A7;
constexpr char32_t kLeadCount = 19, kVowelCount = 21, kTailCount = 28,
                   kSyllableCount = kLeadCount * kVowelCount * kTailCount;

bool is_syllable(char32_t c) {
  return c >= kSyllables && c < kSyllables + kSyllableCount;
}

/// The value of every character.
template <size_t N>
std::vector<uint16_t> spread(const Range (&ranges)[N]) {
  std::vector<uint16_t> all(kCharacters);
  for (const auto& [first, last, value] : ranges) {
    std::fill(all.begin() + first, all.begin() + last + 1, value);
  }
  return all;
}

std::vector<uint16_t> all_properties() {
  std::vector<uint16_t> all = spread(kProperties);
  for (const Mapping& mapping : kDecompositions) {
    all[mapping.from] |= kDecomposes;
  }
  for (char32_t i = 0; i < kSyllableCount; ++i) {
    all[kSyllables + i] |= kDecomposes;
  }
  for (const Mapping& mapping : kLower) all[mapping.from] |= kHasLower;
  return all;
}

/// Values in blocks of 256 characters; equal blocks are kept once.
class CharacterTable {
 public:
  explicit CharacterTable(const std::vector<uint16_t>& all) {
    for (char32_t block = 0; block < kCharacters / kBlock; ++block) {
      const auto begin = all.begin() + block * kBlock;
      size_t same = 0;
      while (same < blocks_.size() &&
             !std::equal(begin, begin + kBlock, blocks_.begin() + same)) {
        same += kBlock;
      }
      if (same == blocks_.size()) {
        blocks_.insert(blocks_.end(), begin, begin + kBlock);
      }
      start_of_[block] = static_cast<uint32_t>(same);
    }
  }

  uint16_t operator[](char32_t c) const {
    return blocks_[start_of_[c / kBlock] + c % kBlock];
  }

 private:
  std::array<uint32_t, kCharacters / kBlock> start_of_{};
  std::vector<uint16_t> blocks_{};
};

template <size_t N>
Characters mapped(const Mapping (&table)[N], char32_t c) {
  const auto* found = std::lower_bound(
      std::begin(table), std::end(table), c,
      [](const Mapping& row, char32_t value) { return row.from < value; });
  Characters result;
  if (found == std::end(table) || found->from != c) {
    result.values[result.size++] = c;
    return result;
  }
  for (const char32_t to : found->to) {
    if (to != 0) result.values[result.size++] = to;
  }
  return result;
}

}  // namespace

uint16_t properties_of(char32_t c) {
  static const CharacterTable table(all_properties());
  return table[c];
}

WordClass word_class_of(char32_t c) {
  static const CharacterTable table(spread(kWordClasses));
  return static_cast<WordClass>(table[c]);
}

BleuClass bleu_class_of(char32_t c) {
  static const CharacterTable table(spread(kBleuClasses));
  return static_cast<BleuClass>(table[c]);
}

Characters decompose(char32_t c) {
  if (!is_syllable(c)) return mapped(kDecompositions, c);
  const char32_t i = c - kSyllables;
  Characters result{
      {kLeads + i / (kVowelCount * kTailCount),
       kVowels + i / kTailCount % kVowelCount, kTails + i % kTailCount},
      3};
  if (i % kTailCount == 0) result.size = 2;
  return result;
}

char32_t compose(char32_t first, char32_t second) {
  const bool lead = first >= kLeads && first < kLeads + kLeadCount;
  if (lead && second >= kVowels && second < kVowels + kVowelCount) {
    return kSyllables +
           ((first - kLeads) * kVowelCount + second - kVowels) * kTailCount;
  }
  const bool open =
      is_syllable(first) && (first - kSyllables) % kTailCount == 0;
  if (open && second > kTails && second < kTails + kTailCount) {
    return first + second - kTails;
  }
  const auto* found = std::lower_bound(
      std::begin(kCompositions), std::end(kCompositions),
      std::pair(first, second), [](const Composition& row, const auto& pair) {
        return std::pair(row.first, row.second) < pair;
      });
  const bool there = found != std::end(kCompositions) &&
                     found->first == first && found->second == second;
  return there ? found->composed : 0;
}

Characters to_lower(char32_t c) { return mapped(kLower, c); }

char32_t next_character(std::string_view text, size_t& position) {
  constexpr char32_t kReplacement = 0xFFFD;
  const auto lead = static_cast<uint8_t>(text[position++]);
  if (lead < 0x80) return lead;
  const int more = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
  if (lead < 0xC2 || lead > 0xF4) return kReplacement;
  char32_t c = lead & (0x3F >> more);
  size_t next = position;
  for (int i = 0; i < more; ++i, ++next) {
    if (next == text.size()) return kReplacement;
    const auto byte = static_cast<uint8_t>(text[next]);
    if ((byte & 0xC0) != 0x80) return kReplacement;
    c = c << 6 | (byte & 0x3F);
  }
  constexpr char32_t kLeast[] = {0, 0x80, 0x800, 0x10000};
  const bool surrogate = c >= 0xD800 && c < 0xE000;
  if (c < kLeast[more] || c >= kCharacters || surrogate) return kReplacement;
  position = next;
  return c;
}

bool is_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const size_t begin = i;
    const auto lead = static_cast<uint8_t>(text[begin]);
    next_character(text, i);
    if (lead >= 0x80 && i == begin + 1) return false;
  }
  return true;
}

void append_utf8(char32_t c, std::string& text) {
  const auto tail = [&](int shift) {
    text.push_back(static_cast<char>(0x80 | (c >> shift & 0x3F)));
  };
  if (c < 0x80) {
    text.push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    text.push_back(static_cast<char>(0xC0 | c >> 6));
    tail(0);
  } else if (c < 0x10000) {
    text.push_back(static_cast<char>(0xE0 | c >> 12));
    tail(6);
    tail(0);
  } else {
    text.push_back(static_cast<char>(0xF0 | c >> 18));
    tail(12);
    tail(6);
    tail(0);
  }
}

}  // namespace luna::text
