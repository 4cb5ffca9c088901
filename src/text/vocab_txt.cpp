#include <c10/util/Exception.h>
#include <luna/io/text_file.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "io/bounded_json.h"
#include "io/json_fields.h"
#include "text/wordpiece_files.h"

namespace luna::text {
namespace {

using Json = nlohmann::json;
using Fields = io::JsonFields<Json>;

/// A token a line; its number from 0 is the id.
std::vector<std::string> read_lines(const std::string& path) {
  const std::string text = io::read_text(path);
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const bool windows = end > begin && text[end - 1] == '\r';
    lines.push_back(text.substr(begin, end - begin - (windows ? 1 : 0)));
    begin = end + 1;
  }
  TORCH_CHECK_VALUE(!lines.empty(), path,
                    ": expected a token a line, got an empty file");
  return lines;
}

/// A special token is written as its text or as an object with it.
std::string special_token(const Fields& config, const std::string& name,
                          const std::string& otherwise) {
  const Json* value = config.find(name);
  if (value == nullptr) return otherwise;
  if (!value->is_object()) return *config.text(name);
  return config.object(name).text("content").value_or(otherwise);
}

int64_t id_of(const WordPieceDescription& result, const std::string& token) {
  const auto found = std::ranges::find(result.tokens, token);
  TORCH_CHECK_VALUE(found != result.tokens.end(), result.where,
                    ": expected the special token ", io::in_quotes(token),
                    ", got a vocabulary without it");
  return found - result.tokens.begin();
}

}  // namespace

WordPieceDescription read_vocabulary(const std::string& path) {
  namespace fs = std::filesystem;
  WordPieceDescription result;
  result.where = path;
  result.tokens = read_lines(path);

  const std::string config_path =
      (fs::path(path).parent_path() / "tokenizer_config.json").string();
  const bool configured = fs::exists(config_path);
  const Json json = configured ? io::parse_bounded_json<Json>(
                                     config_path, io::read_text(config_path))
                               : Json::object();
  const Fields config(json, config_path);
  auto& normalizer = result.normalizer;
  normalizer.lowercase = config.boolean("do_lower_case").value_or(true);
  normalizer.strip_accents = config.boolean("strip_accents");
  normalizer.handle_chinese_chars =
      config.boolean("tokenize_chinese_chars").value_or(true);
  result.unknown = special_token(config, "unk_token", "[UNK]");
  result.pad = special_token(config, "pad_token", "[PAD]");
  const std::string cls_token = special_token(config, "cls_token", "[CLS]");
  const std::string sep_token = special_token(config, "sep_token", "[SEP]");
  const std::string mask_token = special_token(config, "mask_token", "[MASK]");

  using Part = TemplatePart;
  const int64_t cls = id_of(result, cls_token), sep = id_of(result, sep_token);
  for (const std::string& token :
       {result.unknown, result.pad, cls_token, sep_token, mask_token}) {
    const auto found = std::ranges::find(result.tokens, token);
    if (found == result.tokens.end()) continue;
    result.added.push_back(
        {.content = token, .id = found - result.tokens.begin()});
  }
  result.single = {{.id = cls}, {.kind = Part::kFirst}, {.id = sep}};
  result.pair = result.single;
  result.pair.push_back({.kind = Part::kSecond, .type_id = 1});
  result.pair.push_back({.id = sep, .type_id = 1});
  return result;
}

}  // namespace luna::text
