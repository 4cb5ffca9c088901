#include <gtest/gtest.h>
#include <luna/io/text_file.h>
#include <luna/text/wordpiece.h>

#include "support/bad_files.h"
#include "support/temporary_folder.h"

// tests/python/test_wordpiece.py compares with PyPI's tokenizers; here is what
// follows from the definition, and what is refused.

namespace luna::text {
namespace {

using luna::testing::expect_error;

constexpr const char* kVocabulary =
    "[PAD]\n[UNK]\n[CLS]\n[SEP]\nun\n##aff\n##able\na\n##ff\n,\n";

class WordPieceTest : public luna::testing::FolderTest {
 protected:
  WordPiece open(const std::string& name, const std::string& text) {
    io::write_text(path(name), text);
    return WordPiece::open(path(name));
  }
};

using Ids = std::vector<int64_t>;

TEST_F(WordPieceTest, TakesTheLongestPiece) {
  const auto tokenizer = open("vocab.txt", kVocabulary);
  const Encoding encoding = tokenizer.encode("UnAffable,\ta unx");
  EXPECT_EQ(encoding.ids, (Ids{2, 4, 5, 6, 9, 7, 1, 3}));
  EXPECT_EQ(encoding.offsets, (std::vector<Offsets>{{0, 0},
                                                    {0, 2},
                                                    {2, 5},
                                                    {5, 9},
                                                    {9, 10},
                                                    {11, 12},
                                                    {13, 16},
                                                    {0, 0}}));
  EXPECT_EQ(tokenizer.token(6), "##able");
  EXPECT_EQ(tokenizer.find("un"), 4);
  EXPECT_EQ(tokenizer.find("nu"), std::nullopt);
  EXPECT_EQ(tokenizer.pad_id(), 0);
}

TEST_F(WordPieceTest, MarksThePair) {
  const auto tokenizer = open("vocab.txt", kVocabulary);
  const Encoding encoding = tokenizer.encode("un", "a,");
  EXPECT_EQ(encoding.ids, (Ids{2, 4, 3, 7, 9, 3}));
  EXPECT_EQ(encoding.type_ids, (Ids{0, 0, 0, 1, 1, 1}));
}

TEST_F(WordPieceTest, ReadsWhatIsNotUtf8) {
  const auto tokenizer = open("vocab.txt", kVocabulary);
  // Bytes that are no character count as one each, and are dropped.
  for (const char* text : {"\xff"
                           "a",
                           "\xc3"
                           "a",
                           "\xed\xa0\x80"
                           "a",
                           "\xf5"
                           "a",
                           "\xe2\x82"
                           "a"}) {
    EXPECT_EQ(tokenizer.encode(text).ids, (Ids{2, 7, 3})) << text;
  }
  EXPECT_EQ(tokenizer.encode("a\xf0\x9f").ids, (Ids{2, 7, 3}));
}

TEST_F(WordPieceTest, RefusesLengthsThatCannotBe) {
  const auto tokenizer = open("vocab.txt", kVocabulary);
  EncodeOptions options;
  options.max_length = 1;
  expect_error<c10::ValueError>([&] { tokenizer.encode("a", options); },
                                {"max_length >= 2", "got 1"});
  options.max_length = -1;
  expect_error<c10::ValueError>([&] { tokenizer.encode("a", options); },
                                {"max_length", "got -1"});
  options.max_length = 3;
  options.truncation = Truncation::kOnlySecond;
  expect_error<c10::ValueError>([&] { tokenizer.encode("a a", options); },
                                {"expected a pair", "got one sequence"});
  options.truncation = Truncation::kOnlyFirst;
  options.max_length = 4;
  expect_error<c10::ValueError>(
      [&] { tokenizer.encode("a", "a a a a", options); },
      {"first", "more than", "got 1"});
  expect_error<c10::ValueError>([&] { tokenizer.token(10); },
                                {"0 to 9", "got 10"});
}

struct BadFile {
  const char* what;
  const char* name;
  std::string text;
  std::vector<std::string> message;
};

/// A tokenizer.json with one field of another content.
std::string tokenizer_json(const std::string& field = "",
                           const std::string& value = "") {
  const std::pair<const char*, const char*> fields[] = {
      {"added_tokens", "[]"},
      {"normalizer", R"({"type":"BertNormalizer"})"},
      {"pre_tokenizer", R"({"type":"BertPreTokenizer"})"},
      {"post_processor",
       R"({"type":"BertProcessing","sep":["b",2],"cls":["a",1]})"},
      {"model", R"({"type":"WordPiece","vocab":{"[UNK]":0,"a":1,"b":2}})"}};
  std::string text = "{\"version\":\"1.0\"";
  for (const auto& [name, otherwise] : fields) {
    text +=
        ",\"" + std::string(name) + "\":" + (field == name ? value : otherwise);
  }
  return text + "}";
}

std::vector<BadFile> bad_files() {
  const auto model = [](const std::string& vocabulary) {
    return tokenizer_json("model",
                          R"({"type":"WordPiece","vocab":)" + vocabulary + "}");
  };
  const auto added = [](const std::string& fields) {
    return tokenizer_json("added_tokens", "[{" + fields + "}]");
  };
  const auto processor = [](const std::string& fields) {
    return tokenizer_json("post_processor", "{" + fields + "}");
  };
  const char* const json = "tokenizer.json";
  const char* const txt = "vocab.txt";
  return {
      {"an empty vocabulary", txt, "", {"a token a line", "empty"}},
      {"a token twice",
       txt,
       std::string(kVocabulary) + "un\n",
       {"\"un\"", "once", "number 10"}},
      {"no unknown token", txt, "[CLS]\n[SEP]\na\n", {"[UNK]"}},
      {"no separator", txt, "[UNK]\n[CLS]\na\n", {"[SEP]", "without it"}},
      {"no JSON", json, "hello", {"JSON"}},
      {"JSON cut short", json, tokenizer_json().substr(0, 90), {"JSON"}},
      {"an array", json, "[]", {"an object", "an array"}},
      {"nesting", json, std::string(100'000, '['), {"at most 64 levels"}},
      {"no model", json, "{}", {"model", "an object", "none"}},
      {"byte pairs",
       json,
       tokenizer_json("model", R"({"type":"BPE","vocab":{},"merges":[]})"),
       {"model: type", "WordPiece", "\"BPE\""}},
      {"another normaliser",
       json,
       tokenizer_json("normalizer", R"({"type":"NFC"})"),
       {"normalizer: type", "BertNormalizer", "NFC"}},
      {"no normaliser",
       json,
       tokenizer_json("normalizer", "null"),
       {"normalizer", "none"}},
      {"a number for a flag",
       json,
       tokenizer_json("normalizer",
                      R"({"type":"BertNormalizer","lowercase":1})"),
       {"normalizer: lowercase", "true or false", "1"}},
      {"another cut",
       json,
       tokenizer_json("pre_tokenizer", R"({"type":"ByteLevel"})"),
       {"pre_tokenizer: type", "ByteLevel"}},
      {"an empty vocab", json, model("{}"), {"model: vocab"}},
      {"vocab is an array", json, model("[1]"), {"model: vocab", "an array"}},
      {"a huge id",
       json,
       model(R"({"[UNK]":0,"a":4000000000})"),
       {"\"a\"", "0 to 1", "4000000000"}},
      {"a negative id", json, model(R"({"[UNK]":0,"a":-1})"), {"\"a\"", "-1"}},
      {"an id twice",
       json,
       model(R"({"[UNK]":0,"a":1,"b":1})"),
       {"an id of its own", "1"}},
      {"an id that is text",
       json,
       model(R"({"[UNK]":"0"})"),
       {"whole number", "\"0\""}},
      {"an added token without text",
       json,
       added(R"("id":1)"),
       {"added_tokens[0]: content"}},
      {"an added token without an id",
       json,
       added(R"("content":"a")"),
       {"added_tokens[0]: id", "none"}},
      {"an added token far away",
       json,
       added(R"("content":"x","id":9)"),
       {"added_tokens[0]: id", "3", "got 9"}},
      {"a normalised added token",
       json,
       added(R"("content":"a","id":1,"normalized":true)"),
       {"normalized", "not supported"}},
      {"another processor",
       json,
       processor(R"("type":"ByteLevel")"),
       {"post_processor: type", "BertProcessing", "ByteLevel"}},
      {"a separator that is not known",
       json,
       processor(R"("type":"BertProcessing","sep":["x",2],"cls":["a",1])"),
       {"post_processor: sep", "\"x\""}},
      {"a separator with another id",
       json,
       processor(R"("type":"BertProcessing","sep":["b",1],"cls":["a",1])"),
       {"post_processor: sep", "2", "got 1"}},
      {"a template without a sequence",
       json,
       processor(R"("type":"TemplateProcessing","single":[],"pair":[])"),
       {"post_processor: single", "A once", "0"}},
      {"a template of something else",
       json,
       processor(R"("type":"TemplateProcessing","single":[{"What":1}])"),
       {"single[0]: Sequence"}},
  };
}

TEST_F(WordPieceTest, RefusesBadFiles) {
  EXPECT_EQ(open("tokenizer.json", tokenizer_json()).encode("A b").ids,
            (Ids{1, 1, 2, 2}));
  for (const BadFile& bad : bad_files()) {
    SCOPED_TRACE(bad.what);
    auto parts = bad.message;
    parts.push_back(path(bad.name));  // every message names the file
    luna::testing::expect_refused(
        folder_, [&] { open(bad.name, bad.text); }, parts);
  }
  expect_error<c10::ValueError>(
      [&] {
        std::filesystem::create_directories(path("none"));
        WordPiece::open(path("none"));
      },
      {"tokenizer.json or vocab.txt", path("none")});
}

}  // namespace
}  // namespace luna::text
