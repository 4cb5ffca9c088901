#include "luna/text/wordpiece.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "text/normalize.h"
#include "text/unicode.h"
#include "text/vocabulary.h"
#include "text/wordpiece_files.h"

namespace luna::text {
namespace {

/// Where a piece of text or an added token in it is.
struct Span {
  size_t begin = 0, end = 0;
};

bool is_separator(char32_t c) { return properties_of(c) & kSeparator; }

size_t count_characters(std::string_view text) {
  size_t count = 0;
  for (size_t i = 0; i < text.size(); ++count) next_character(text, i);
  return count;
}

/// Where the white space begins that `text` ends with.
size_t end_without_space(std::string_view text) {
  size_t end = 0;
  for (size_t i = 0; i < text.size();) {
    if (!is_separator(next_character(text, i))) end = i;
  }
  return end;
}

/// How many bytes of white space `text` begins with.
size_t leading_space(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const size_t before = i;
    if (!is_separator(next_character(text, i))) return before;
  }
  return text.size();
}

/// How many tokens stay of `first` and `second`.
std::pair<int64_t, int64_t> lengths_within(int64_t first, int64_t second,
                                           bool pair, int64_t most,
                                           Truncation truncation) {
  const int64_t surplus = first + second - most;
  if (surplus <= 0) return {first, second};
  if (most == 0) return {0, 0};
  if (truncation == Truncation::kLongestFirst) {
    if (!pair) return {most, 0};
    auto shorter = std::min(first, second), longer = std::max(first, second);
    longer = std::max(shorter, most - shorter);
    if (shorter + longer > most) {
      shorter = most / 2;
      longer = shorter + most % 2;
    }
    return first > second ? std::pair(longer, shorter)
                          : std::pair(shorter, longer);
  }
  const bool second_one = truncation == Truncation::kOnlySecond;
  TORCH_CHECK_VALUE(!second_one || pair,
                    "WordPiece: expected a pair to truncate the second of it, "
                    "got one sequence");
  const int64_t length = second_one ? second : first;
  TORCH_CHECK_VALUE(length > surplus, "WordPiece: expected a ",
                    second_one ? "second" : "first", " sequence of more than ",
                    surplus, " tokens, to be cut by as many, got ", length);
  return second_one ? std::pair(first, second - surplus)
                    : std::pair(first - surplus, second);
}

}  // namespace

struct WordPiece::Parts {
  explicit Parts(WordPieceDescription description_)
      : description(std::move(description_)),
        vocabulary(description.where, std::move(description.tokens),
                   description.unknown, description.prefix,
                   description.max_characters) {
    for (const AddedToken& token : description.added) {
      starts[static_cast<uint8_t>(token.content[0])] = true;
      if (token.id >= std::ssize(vocabulary.tokens())) {
        further_tokens.push_back(token.content);
      }
    }
    // Of those that begin at one place, the longest counts.
    std::ranges::stable_sort(description.added,
                             [](const AddedToken& a, const AddedToken& b) {
                               return a.content.size() > b.content.size();
                             });
  }

  /// The added token that begins here, if any.
  const AddedToken* added_at(std::string_view text, size_t position) const {
    if (!starts[static_cast<uint8_t>(text[position])]) return nullptr;
    for (const AddedToken& token : description.added) {
      if (text.substr(position).starts_with(token.content)) return &token;
    }
    return nullptr;
  }

  /// Ids and offsets of a text without special tokens around it.
  Encoding pieces(std::string_view text) const;
  void add_words(std::string_view text, uint32_t source,
                 Encoding& result) const;

  WordPieceDescription description;
  Vocabulary vocabulary;
  std::vector<std::string> further_tokens{};  ///< with ids behind its
  std::array<bool, 256> starts{};             ///< first bytes of added tokens
};

void WordPiece::Parts::add_words(std::string_view text, uint32_t source,
                                 Encoding& result) const {
  thread_local std::vector<Character> characters;
  thread_local std::string bytes;
  thread_local std::vector<uint32_t> ends_of_characters, ends;
  characters.clear();
  normalize(text, source, description.normalizer, characters);
  for (size_t position = 0; position < characters.size();) {
    const Word word = next_word(characters, position);
    if (word.begin == word.end) break;
    bytes.clear();
    ends_of_characters.clear();
    for (size_t i = word.begin; i < word.end; ++i) {
      append_utf8(characters[i].value, bytes);
      ends_of_characters.push_back(static_cast<uint32_t>(bytes.size()));
    }
    ends.clear();
    vocabulary.cut(bytes, ends_of_characters, result.ids, ends);
    size_t begin = word.begin;
    for (const uint32_t end : ends) {
      result.offsets.push_back(
          {characters[begin].source,
           int64_t{characters[word.begin + end - 1].source} + 1});
      begin = word.begin + end;
    }
  }
}

Encoding WordPiece::Parts::pieces(std::string_view text) const {
  TORCH_CHECK_VALUE(text.size() < (size_t{1} << 31),
                    "WordPiece: expected text of less than 2 GiB, got ",
                    text.size(), " bytes");
  Encoding result;
  size_t begin = 0, characters = 0;  // of what is not yet taken
  const auto take_words = [&](size_t end) {
    const std::string_view piece = text.substr(begin, end - begin);
    if (piece.empty()) return;
    add_words(piece, static_cast<uint32_t>(characters), result);
    characters += count_characters(piece);
    begin = end;
  };
  for (size_t i = 0; i < text.size();) {
    const AddedToken* token = added_at(text, i);
    if (token == nullptr) {
      ++i;
      continue;
    }
    Span span{i, i + token->content.size()};
    if (token->lstrip) {
      const std::string_view before = text.substr(begin, span.begin - begin);
      span.begin = begin + end_without_space(before);
    }
    if (token->rstrip) span.end += leading_space(text.substr(span.end));
    take_words(span.begin);
    const auto count = static_cast<int64_t>(
        count_characters(text.substr(span.begin, span.end - span.begin)));
    const auto at = static_cast<int64_t>(characters);
    result.ids.push_back(token->id);
    result.offsets.push_back({at, at + count});
    characters += count;
    begin = i = span.end;
  }
  take_words(text.size());
  return result;
}

WordPiece::WordPiece(std::shared_ptr<const Parts> parts)
    : parts_(std::move(parts)) {}

WordPiece WordPiece::open(const std::string& path) {
  namespace fs = std::filesystem;
  fs::path file = path;
  if (fs::is_directory(file)) {
    file = fs::path(path) / "tokenizer.json";
    if (!fs::exists(file)) file = fs::path(path) / "vocab.txt";
    TORCH_CHECK_VALUE(fs::exists(file), path,
                      ": expected tokenizer.json or vocab.txt in it, got a "
                      "folder without either");
  }
  return WordPiece(std::make_shared<const Parts>(
      file.extension() == ".json" ? read_tokenizer_json(file.string())
                                  : read_vocabulary(file.string())));
}

namespace {

void append(const Encoding& pieces, int64_t count, int64_t type_id,
            Encoding& result) {
  result.ids.insert(result.ids.end(), pieces.ids.begin(),
                    pieces.ids.begin() + count);
  result.offsets.insert(result.offsets.end(), pieces.offsets.begin(),
                        pieces.offsets.begin() + count);
  result.type_ids.resize(result.ids.size(), type_id);
}

Encoding assemble(const std::vector<TemplatePart>& parts, const Encoding& first,
                  const Encoding* second, const EncodeOptions& options) {
  TORCH_CHECK_VALUE(options.max_length >= 0,
                    "WordPiece: expected max_length >= 0, got ",
                    options.max_length);
  const auto specials = std::ranges::count_if(parts, [&](const auto& part) {
    return options.special_tokens && part.kind == TemplatePart::kSpecial;
  });
  auto lengths = std::pair(std::ssize(first.ids),
                           second == nullptr ? 0 : std::ssize(second->ids));
  if (options.max_length > 0) {
    TORCH_CHECK_VALUE(options.max_length >= specials,
                      "WordPiece: expected max_length >= ", specials,
                      " (the special tokens), got ", options.max_length);
    lengths = lengths_within(lengths.first, lengths.second, second != nullptr,
                             options.max_length - specials, options.truncation);
  }
  Encoding result;
  for (const TemplatePart& part : parts) {
    if (part.kind == TemplatePart::kFirst) {
      append(first, lengths.first, part.type_id, result);
    } else if (part.kind == TemplatePart::kSecond) {
      append(*second, lengths.second, part.type_id, result);
    } else if (options.special_tokens) {
      result.ids.push_back(part.id);
      result.offsets.push_back({0, 0});
      result.type_ids.push_back(part.type_id);
    }
  }
  return result;
}

}  // namespace

Encoding WordPiece::encode(std::string_view text,
                           const EncodeOptions& options) const {
  return assemble(parts_->description.single, parts_->pieces(text), nullptr,
                  options);
}

Encoding WordPiece::encode(std::string_view first, std::string_view second,
                           const EncodeOptions& options) const {
  const Encoding pieces = parts_->pieces(second);
  return assemble(parts_->description.pair, parts_->pieces(first), &pieces,
                  options);
}

int64_t WordPiece::size() const {
  return std::ssize(parts_->vocabulary.tokens()) +
         std::ssize(parts_->further_tokens);
}

const std::string& WordPiece::token(int64_t id) const {
  TORCH_CHECK_VALUE(id >= 0 && id < size(),
                    "WordPiece: expected an id from 0 to ", size() - 1,
                    ", got ", id);
  const auto known = std::ssize(parts_->vocabulary.tokens());
  return id < known ? parts_->vocabulary.tokens()[id]
                    : parts_->further_tokens[id - known];
}

std::optional<int64_t> WordPiece::find(std::string_view token) const {
  for (const AddedToken& added : parts_->description.added) {
    if (added.content == token) return added.id;
  }
  return parts_->vocabulary.find(token);
}

int64_t WordPiece::pad_id() const {
  return find(parts_->description.pad).value_or(0);
}

const BertNormalizerOptions& WordPiece::normalizer() const {
  return parts_->description.normalizer;
}

}  // namespace luna::text
