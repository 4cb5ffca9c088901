#include <c10/util/Exception.h>
#include <luna/io/text_file.h>

#include <map>
#include <nlohmann/json.hpp>

#include "io/bounded_json.h"
#include "io/json_fields.h"
#include "text/vocabulary_json.h"
#include "text/wordpiece_files.h"

namespace luna::text {
namespace {

using Json = nlohmann::json;
using Fields = io::JsonFields<Json>;

constexpr int64_t kMaxId = int64_t{1} << 30;

/// Refuses another type than the one that BERT has.
void check_type(const Fields& fields, const std::string& expected) {
  const std::string type = fields.text("type").value_or("");
  TORCH_CHECK_VALUE(type == expected, fields.place("type"), ": expected ",
                    expected, " (a tokenizer of BERT's kind), got ",
                    io::in_quotes(type));
}

BertNormalizerOptions read_normalizer(const Fields& fields) {
  check_type(fields, "BertNormalizer");
  BertNormalizerOptions options;
  options.clean_text = fields.boolean("clean_text").value_or(true);
  options.handle_chinese_chars =
      fields.boolean("handle_chinese_chars").value_or(true);
  options.strip_accents = fields.boolean("strip_accents");
  options.lowercase = fields.boolean("lowercase").value_or(true);
  return options;
}

void read_model(const Fields& model, WordPieceDescription& result) {
  check_type(model, "WordPiece");
  result.unknown = model.text("unk_token").value_or("[UNK]");
  result.prefix = model.text("continuing_subword_prefix").value_or("##");
  result.max_characters =
      model.integer("max_input_chars_per_word", 1, kMaxId).value_or(100);
  result.tokens = read_vocabulary(model);
}

/// In the vocabulary, or with the ids that follow it.
void read_added_tokens(const Fields& file, WordPieceDescription& result) {
  const Json* list = file.find("added_tokens");
  if (list == nullptr) return;
  TORCH_CHECK_VALUE(list->is_array(), file.place("added_tokens"),
                    ": expected an array, got ", Fields::shown(*list));
  const auto size = static_cast<int64_t>(result.tokens.size());
  int64_t next = size;
  for (size_t i = 0; i < list->size(); ++i) {
    const Fields token((*list)[i],
                       file.place("added_tokens[" + std::to_string(i) + "]"));
    AddedToken added;
    added.content = token.text("content").value_or("");
    TORCH_CHECK_VALUE(!added.content.empty(), token.place("content"),
                      ": expected text, got none");
    for (const char* name : {"single_word", "normalized"}) {
      TORCH_CHECK_VALUE(!token.boolean(name).value_or(false), token.place(name),
                        ": expected false for ", io::in_quotes(added.content),
                        " (tokens that are looked for in normalised text or "
                        "as whole words are not supported), got true");
    }
    added.lstrip = token.boolean("lstrip").value_or(false);
    added.rstrip = token.boolean("rstrip").value_or(false);
    token.get("id", "a whole number");
    added.id = *token.integer("id", 0, kMaxId);
    const bool known =
        added.id < size && result.tokens[added.id] == added.content;
    TORCH_CHECK_VALUE(known || added.id == next, token.place("id"),
                      ": expected the id that the vocabulary has for ",
                      io::in_quotes(added.content), ", or ", next,
                      ", the next free one, got ", added.id);
    if (!known) ++next;
    result.added.push_back(std::move(added));
  }
}

int64_t id_of(const WordPieceDescription& result, const std::string& token,
              const std::string& place) {
  for (const AddedToken& added : result.added) {
    if (added.content == token) return added.id;
  }
  const auto found = std::ranges::find(result.tokens, token);
  TORCH_CHECK_VALUE(found != result.tokens.end(), place,
                    ": expected a token of the vocabulary, got ",
                    io::in_quotes(token));
  return found - result.tokens.begin();
}

std::vector<TemplatePart> read_template(const Fields& processor,
                                        const std::string& name,
                                        const WordPieceDescription& result) {
  const Json& list = processor.get(name, "an array");
  TORCH_CHECK_VALUE(list.is_array(), processor.place(name),
                    ": expected an array, got ", Fields::shown(list));
  std::vector<TemplatePart> parts;
  int first = 0, second = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string place =
        processor.place(name + "[" + std::to_string(i) + "]");
    const Fields part(list[i], place);
    const bool special = part.has("SpecialToken");
    const Fields value = part.object(special ? "SpecialToken" : "Sequence");
    const std::string id = value.text("id").value_or("");
    TemplatePart read;
    read.type_id = value.integer("type_id", 0, kMaxId).value_or(0);
    if (special) {
      read.id = id_of(result, id, value.place("id"));
    } else {
      TORCH_CHECK_VALUE(id == "A" || id == "B", value.place("id"),
                        ": expected A or B, got ", io::in_quotes(id));
      read.kind = id == "A" ? TemplatePart::kFirst : TemplatePart::kSecond;
      ++(id == "A" ? first : second);
    }
    parts.push_back(read);
  }
  const int pairs = name == "pair" ? 1 : 0;
  TORCH_CHECK_VALUE(first == 1 && second == pairs, processor.place(name),
                    ": expected sequence A once and B ",
                    pairs == 1 ? "once" : "never", ", got ", first, " and ",
                    second);
  return parts;
}

/// ["[SEP]", 102]
int64_t read_token_and_id(const Fields& processor, const std::string& name,
                          const WordPieceDescription& result) {
  const Json& json = processor.get(name, "a token and its id");
  const std::string place = processor.place(name);
  TORCH_CHECK_VALUE(json.is_array() && json.size() == 2 && json[0].is_string(),
                    place, ": expected a token and its id, got ",
                    Fields::shown(json));
  const int64_t id =
      id_of(result, json[0].get_ref<const std::string&>(), place);
  TORCH_CHECK_VALUE(json[1] == id, place, ": expected the vocabulary's id ", id,
                    ", got ", Fields::shown(json[1]));
  return id;
}

void read_processor(const Fields& file, WordPieceDescription& result) {
  using Part = TemplatePart;
  if (!file.has("post_processor")) {
    result.single = {{.kind = Part::kFirst}};
    result.pair = {{.kind = Part::kFirst},
                   {.kind = Part::kSecond, .type_id = 1}};
    return;
  }
  const Fields processor = file.object("post_processor");
  const std::string type = processor.text("type").value_or("");
  if (type == "TemplateProcessing") {
    result.single = read_template(processor, "single", result);
    result.pair = read_template(processor, "pair", result);
    return;
  }
  TORCH_CHECK_VALUE(type == "BertProcessing", processor.place("type"),
                    ": expected TemplateProcessing or BertProcessing, got ",
                    io::in_quotes(type));
  const int64_t cls = read_token_and_id(processor, "cls", result);
  const int64_t sep = read_token_and_id(processor, "sep", result);
  result.single = {{.id = cls}, {.kind = Part::kFirst}, {.id = sep}};
  result.pair = result.single;
  result.pair.push_back({.kind = Part::kSecond, .type_id = 1});
  result.pair.push_back({.id = sep, .type_id = 1});
}

}  // namespace

WordPieceDescription read_tokenizer_json(const std::string& path) {
  const Json json = io::parse_bounded_json<Json>(path, io::read_text(path));
  const Fields file(json, path);
  WordPieceDescription result;
  result.where = path;
  // The model first: a file of another kind is best told by it.
  read_model(file.object("model"), result);
  result.normalizer = read_normalizer(file.object("normalizer"));
  check_type(file.object("pre_tokenizer"), "BertPreTokenizer");
  read_added_tokens(file, result);
  read_processor(file, result);
  return result;
}

}  // namespace luna::text
