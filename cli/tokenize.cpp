#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iostream>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>

#include "command.h"
#include "luna/text/bpe.h"
#include "luna/text/wordpiece.h"

namespace luna::cli {
namespace {

struct Options {
  std::string path{};
  bool json = false, decode = false;
  int64_t max_length = 0;
  text::Truncation truncation = text::Truncation::kLongestFirst;
};

nlohmann::json to_json(const text::WordPiece& tokenizer,
                       const text::Encoding& encoding) {
  nlohmann::json tokens = nlohmann::json::array();
  nlohmann::json offsets = nlohmann::json::array();
  for (const int64_t id : encoding.ids) tokens.push_back(tokenizer.token(id));
  for (const auto& [begin, end] : encoding.offsets) {
    offsets.push_back({begin, end});
  }
  return {{"ids", encoding.ids},
          {"type_ids", encoding.type_ids},
          {"offsets", offsets},
          {"tokens", tokens}};
}

/// A line is a text, or in JSON a string or an array of two of them.
text::Encoding encode_line(const text::WordPiece& tokenizer,
                           const std::string& line, const Options& options) {
  text::EncodeOptions encode;
  encode.max_length = options.max_length;
  encode.truncation = options.truncation;
  if (!options.json) return tokenizer.encode(line, encode);
  const auto json = nlohmann::json::parse(line, nullptr, false);
  if (json.is_string()) {
    return tokenizer.encode(json.get_ref<const std::string&>(), encode);
  }
  const bool pair = json.is_array() && json.size() == 2 &&
                    json[0].is_string() && json[1].is_string();
  TORCH_CHECK_VALUE(pair,
                    "standard input: expected a JSON string or two in "
                    "an array on each line, got ",
                    line.substr(0, 100));
  return tokenizer.encode(json[0].get_ref<const std::string&>(),
                          json[1].get_ref<const std::string&>(), encode);
}

/// Ids with spaces between them, or in JSON an array or what --json gives.
std::vector<int32_t> read_ids(const std::string& line, bool json) {
  std::string array = line;
  if (!json) {
    std::ranges::replace(array, ' ', ',');
    array = "[" + array + "]";
  }
  auto ids = nlohmann::json::parse(array, nullptr, false);
  if (ids.is_object() && ids.contains("ids")) ids = nlohmann::json(ids["ids"]);
  const bool whole =
      ids.is_array() && std::ranges::all_of(ids, [](const nlohmann::json& id) {
        return id.is_number_integer() && id >= 0 &&
               id <= std::numeric_limits<int32_t>::max();
      });
  TORCH_CHECK_VALUE(whole, "standard input: expected ids ",
                    json ? "in a JSON array, or an object that has them as ids,"
                         : "with a space between them",
                    " on each line, got ", line.substr(0, 100));
  return ids.get<std::vector<int32_t>>();
}

std::string answer_of(const text::Bpe& tokenizer, const std::string& line,
                      const Options& options) {
  using nlohmann::json;
  constexpr auto kReplace = json::error_handler_t::replace;
  if (options.decode) {
    const std::string text = tokenizer.decode(read_ids(line, options.json));
    if (!options.json) return text;
    return json({{"text", text}}).dump(-1, ' ', false, kReplace);
  }
  std::string text = line;
  if (options.json) {
    auto parsed = json::parse(line, nullptr, false);
    if (parsed.is_object() && parsed.contains("text")) {
      parsed = json(parsed["text"]);
    }
    TORCH_CHECK_VALUE(parsed.is_string(),
                      "standard input: expected a JSON string, or an object "
                      "that has it as text, on each line, got ",
                      line.substr(0, 100));
    text = parsed.get<std::string>();
  }
  const std::vector<int32_t> ids = tokenizer.encode(text);
  std::vector<std::string> tokens;
  for (const int32_t id : ids) tokens.push_back(tokenizer.token(id));
  if (options.json) return json({{"ids", ids}, {"tokens", tokens}}).dump();
  return fmt::format("{}", fmt::join(tokens, " "));
}

int run_bpe(const Options& options) {
  const auto tokenizer = text::Bpe::open(options.path);
  if (options.max_length > 0) {
    throw UsageError("--max-length: expected a tokenizer of BERT's kind, got " +
                     options.path);
  }
  std::ios::sync_with_stdio(false);
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << answer_of(tokenizer, line, options) << '\n';
  }
  return kOk;
}

int run(const Options& options) {
  if (text::holds_bpe(options.path)) return run_bpe(options);
  if (options.decode) {
    throw UsageError("--decode: expected a tokenizer of byte pairs, got " +
                     options.path);
  }
  const auto tokenizer = text::WordPiece::open(options.path);
  std::ios::sync_with_stdio(false);
  for (std::string line; std::getline(std::cin, line);) {
    const text::Encoding encoding = encode_line(tokenizer, line, options);
    if (options.json) {
      std::cout << to_json(tokenizer, encoding) << '\n';
      continue;
    }
    const char* space = "";
    for (const int64_t id : encoding.ids) {
      std::cout << space << tokenizer.token(id);
      space = " ";
    }
    std::cout << '\n';
  }
  return kOk;
}

}  // namespace

Command add_tokenize(CLI::App& program) {
  CLI::App* app = program.add_subcommand(
      "tokenize", "Cut lines of standard input into tokens");
  app->allow_extras();
  app->footer(
      "Examples:\n"
      "  echo 'Linear attention.' | luna tokenize path/to/bert\n"
      "  luna tokenize tokenizer < train.en\n\n"
      "A tokenizer.json of BERT's kind (WordPiece) or of byte pairs (luna "
      "bpe).");
  const auto options = std::make_shared<Options>();
  app->add_option("path", options->path,
                  "A tokenizer.json, a vocab.txt, or a folder with one")
      ->required();
  app->add_flag("--json", options->json,
                "Lines are JSON: a string or an array of two, a pair; the "
                "answers are objects with ids, type_ids, offsets (in "
                "characters), tokens; byte pairs: with ids and tokens, and "
                "--decode takes them and gives objects with text");
  app->add_flag("--decode", options->decode,
                "Byte pairs: lines of ids become text again");
  app->add_option("--max-length", options->max_length,
                  "At most so many ids, special ones counted; 0: all")
      ->check(at_least(0));
  const std::map<std::string, text::Truncation> strategies = {
      {"longest_first", text::Truncation::kLongestFirst},
      {"only_first", text::Truncation::kOnlyFirst},
      {"only_second", text::Truncation::kOnlySecond}};
  app->add_option("--truncation", options->truncation,
                  "Which sequence gets shorter: longest_first (default), "
                  "only_first, only_second")
      ->transform(CLI::CheckedTransformer(strategies))
      ->option_text("STRATEGY");
  return {app, [options] { return run(*options); }};
}

}  // namespace luna::cli
