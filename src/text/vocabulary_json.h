#pragma once

#include <c10/util/Exception.h>
#include <luna/io/text_file.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "io/json_fields.h"

namespace luna::text {

/// The `vocab` of a tokenizer.json's model: tokens[id].
inline std::vector<std::string> read_vocabulary(
    const io::JsonFields<nlohmann::json>& model) {
  using Fields = io::JsonFields<nlohmann::json>;
  const auto& vocabulary = model.get("vocab", "an object of tokens and ids");
  const std::string where = model.place("vocab");
  TORCH_CHECK_VALUE(vocabulary.is_object() && !vocabulary.empty(), where,
                    ": expected an object of tokens and ids, got ",
                    Fields::shown(vocabulary));
  const auto size = static_cast<int64_t>(vocabulary.size());
  std::vector<std::string> tokens(size);
  std::vector<bool> taken(size);
  for (const auto& [token, json] : vocabulary.items()) {
    const std::string place = where + ": " + io::in_quotes(token);
    // As many ids as tokens, so that none is left out.
    const int64_t id = Fields::integer_of(json, place, 0, size - 1);
    TORCH_CHECK_VALUE(!taken[id], place, ": expected an id of its own, got ",
                      id, ", which ", io::in_quotes(tokens[id]), " has");
    taken[id] = true;
    tokens[id] = token;
  }
  return tokens;
}

}  // namespace luna::text
