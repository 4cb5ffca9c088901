// A tokenizer's files: tokenizer.json, or vocab.txt and tokenizer_config.json.
#pragma once

#include <string>
#include <vector>

#include "luna/text/wordpiece.h"

namespace luna::text {

/// A token that is found in the text before anything else is done to it.
struct AddedToken {
  std::string content{};
  int64_t id = 0;
  bool lstrip = false, rstrip = false;  ///< takes the white space beside it
};

struct TemplatePart {
  enum Kind { kSpecial, kFirst, kSecond } kind = kSpecial;
  int64_t id = 0;  ///< kSpecial
  int64_t type_id = 0;
};

/// All that the files say.
struct WordPieceDescription {
  std::string where{};  ///< the file that the vocabulary is from
  BertNormalizerOptions normalizer{};
  std::vector<std::string> tokens{};
  std::string unknown = "[UNK]";
  std::string pad = "[PAD]";
  std::string prefix = "##";
  int64_t max_characters = 100;  ///< of a word; a longer one is unknown
  std::vector<AddedToken> added{};
  std::vector<TemplatePart> single{}, pair{};
};

WordPieceDescription read_tokenizer_json(const std::string& path);
WordPieceDescription read_vocabulary(const std::string& path);

}  // namespace luna::text
