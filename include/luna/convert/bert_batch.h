#pragma once

#include <luna/models/bert.h>
#include <luna/text/wordpiece.h>

#include <optional>
#include <string>
#include <vector>

namespace luna::convert {

struct Text {
  std::string first{};
  std::optional<std::string> second{};
};

/// Texts and pairs as one batch, padded on the right with the tokenizer's pad
/// id; each cut to at most `max_length` ids, the longer of a pair first.
models::BertInput make_bert_batch(const text::WordPiece& tokenizer,
                                  const std::vector<Text>& texts,
                                  int64_t max_length);

}  // namespace luna::convert
