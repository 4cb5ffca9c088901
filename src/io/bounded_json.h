// JSON from files that nobody vouches for, as a document: read once for its
// size, event by event, and only then kept.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace luna::io {

/// Refuses text whose document would take more than 64 MiB beyond the text's
/// own size or is nested more than 64 deep; an error names `where`.
void check_json_size(const std::string& where, std::string_view text);

/// The document; of two equal keys the last counts. Json: nlohmann::json, or
/// ordered_json where the order matters (and keys are few: it searches them
/// one by one).
template <class Json>
Json parse_bounded_json(const std::string& where, std::string_view text) {
  check_json_size(where, text);
  return Json::parse(text);
}

}  // namespace luna::io
