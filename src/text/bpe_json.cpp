#include <c10/util/Exception.h>
#include <luna/io/text_file.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "io/bounded_json.h"
#include "io/json_fields.h"
#include "text/bpe_parts.h"
#include "text/vocabulary_json.h"

namespace luna::text {
namespace {

using Json = nlohmann::json;
using Fields = io::JsonFields<Json>;

constexpr const char* kFileName = "tokenizer.json";

std::string file_of(const std::string& path) {
  if (!std::filesystem::is_directory(path)) return path;
  return (std::filesystem::path(path) / kFileName).string();
}

void check_type(const Fields& fields, const std::string& expected) {
  const std::string type = fields.text("type").value_or("");
  TORCH_CHECK_VALUE(type == expected, fields.place("type"), ": expected ",
                    expected, " (a tokenizer of byte pairs), got ",
                    io::in_quotes(type));
}

/// Refuses a flag that is not as byte-level BPE has it.
void check_flag(const Fields& fields, const char* name, bool expected,
                bool otherwise) {
  TORCH_CHECK_VALUE(fields.boolean(name).value_or(otherwise) == expected,
                    fields.place(name), ": expected ",
                    expected ? "true" : "false", ", got ",
                    expected ? "false" : "true");
}

/// Refuses whatever would change what text becomes.
void check_file(const Fields& file) {
  const Fields model = file.object("model");
  check_type(model, "BPE");
  for (const char* name : {"dropout", "unk_token"}) {
    TORCH_CHECK_VALUE(!model.has(name), model.place(name),
                      ": expected null, got ",
                      Fields::shown(*model.find(name)));
  }
  for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const std::string text = model.text(name).value_or("");
    TORCH_CHECK_VALUE(text.empty(), model.place(name), ": expected none, got ",
                      io::in_quotes(text));
  }
  check_flag(model, "byte_fallback", false, false);
  check_flag(model, "ignore_merges", false, false);
  TORCH_CHECK_VALUE(!file.has("normalizer"), file.place("normalizer"),
                    ": expected null, got ",
                    Fields::shown(*file.find("normalizer")));
  const Fields words = file.object("pre_tokenizer");
  check_type(words, "ByteLevel");
  check_flag(words, "add_prefix_space", false, true);
  check_flag(words, "use_regex", true, true);
  if (file.has("post_processor")) {
    check_type(file.object("post_processor"), "ByteLevel");
  }
  const Json* added = file.find("added_tokens");
  TORCH_CHECK_VALUE(added == nullptr || (added->is_array() && added->empty()),
                    file.place("added_tokens"),
                    ": expected an empty array (tokens that are looked for in "
                    "the text are not supported), got ",
                    added->is_array()
                        ? "an array with " + std::to_string(added->size())
                        : Fields::shown(*added));
}

/// ["a", "b"], or "a b" as older files have it.
std::pair<std::string, std::string> read_merge(const Json& json,
                                               const std::string& place) {
  if (json.is_array() && json.size() == 2 && json[0].is_string() &&
      json[1].is_string()) {
    return {json[0].get<std::string>(), json[1].get<std::string>()};
  }
  const std::string text = json.is_string() ? json.get<std::string>() : "";
  const size_t space = text.find(' ');
  TORCH_CHECK_VALUE(space != std::string::npos, place,
                    ": expected two tokens, got ", Fields::shown(json));
  return {text.substr(0, space), text.substr(space + 1)};
}

std::vector<BytePair> read_merges(const Fields& model,
                                  const std::vector<std::string>& tokens) {
  std::unordered_map<std::string_view, int32_t> ids;
  for (size_t id = 0; id < tokens.size(); ++id) {
    ids[tokens[id]] = static_cast<int32_t>(id);
  }
  const Json& list = model.get("merges", "an array of pairs");
  TORCH_CHECK_VALUE(list.is_array(), model.place("merges"),
                    ": expected an array, got ", Fields::shown(list));
  std::vector<BytePair> pairs;
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string place = model.place("merges[" + std::to_string(i) + "]");
    const auto id_of = [&](const std::string& token) {
      const auto found = ids.find(token);
      TORCH_CHECK_VALUE(found != ids.end(), place,
                        ": expected tokens of the vocabulary, got ",
                        io::in_quotes(token));
      return found->second;
    };
    const auto [left, right] = read_merge(list[i], place);
    pairs.emplace_back(id_of(left), id_of(right));
  }
  return pairs;
}

}  // namespace

Bpe Bpe::open(const std::string& path) {
  const std::string file = file_of(path);
  const Json json = io::parse_bounded_json<Json>(file, io::read_text(file));
  const Fields fields(json, file);
  check_file(fields);
  const Fields model = fields.object("model");
  std::vector<std::string> tokens = read_vocabulary(model);
  std::vector<BytePair> pairs = read_merges(model, tokens);
  return Bpe(
      std::make_shared<const Parts>(file, std::move(tokens), std::move(pairs)));
}

void Bpe::save(const std::string& path) const {
  const auto quoted = [](const std::string& text) { return Json(text).dump(); };
  const std::string byte_level =
      R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,)"
      R"("use_regex":true})";
  std::string text =
      "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n"
      "  \"padding\": null,\n  \"added_tokens\": [],\n"
      "  \"normalizer\": null,\n  \"pre_tokenizer\": " +
      byte_level +
      ",\n  \"post_processor\": null,\n  \"decoder\": " + byte_level +
      ",\n  \"model\": {\n"
      "    \"type\": \"BPE\",\n    \"dropout\": null,\n"
      "    \"unk_token\": null,\n    \"continuing_subword_prefix\": null,\n"
      "    \"end_of_word_suffix\": null,\n    \"fuse_unk\": false,\n"
      "    \"byte_fallback\": false,\n    \"ignore_merges\": false,\n"
      "    \"vocab\": {";
  const char* comma = "";
  for (size_t id = 0; id < parts_->tokens.size(); ++id) {
    text += comma + ("\n      " + quoted(parts_->tokens[id])) + ": " +
            std::to_string(id);
    comma = ",";
  }
  text += "\n    },\n    \"merges\": [";
  comma = "";
  for (const auto& [left, right] : parts_->pairs) {
    text += comma + ("\n      [" + quoted(parts_->tokens[left])) + ", " +
            quoted(parts_->tokens[right]) + "]";
    comma = ",";
  }
  io::write_text(path, text + "\n    ]\n  }\n}\n");
}

bool holds_bpe(const std::string& path) {
  const std::string file = file_of(path);
  if (!std::filesystem::exists(file) || !file.ends_with(".json")) return false;
  const Json json = io::parse_bounded_json<Json>(file, io::read_text(file));
  const auto model = json.is_object() ? json.find("model") : json.end();
  return json.is_object() && model != json.end() && model->is_object() &&
         model->value("type", Json()) == "BPE";
}

}  // namespace luna::text
