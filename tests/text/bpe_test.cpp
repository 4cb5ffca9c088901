#include <gtest/gtest.h>
#include <luna/io/text_file.h>
#include <luna/text/bpe.h>

#include <random>

#include "support/errors.h"
#include "support/temporary_folder.h"
#include "text/byte_words.h"

// tests/python/test_bpe.py compares with PyPI's tokenizers; here is what
// follows from the definition, and what is refused.

namespace luna::text {
namespace {

using luna::testing::expect_error;

class BpeTest : public luna::testing::FolderTest {
 protected:
  Bpe open(const std::string& text) {
    io::write_text(path("tokenizer.json"), text);
    return Bpe::open(path("tokenizer.json"));
  }

  /// A tokenizer.json with one piece of it replaced.
  std::string changed(const std::string& what, const std::string& by) {
    BpeLearner learner;
    learner.add("abab abab");
    learner.learn({.merges = 2}).save(path("good.json"));
    std::string text = io::read_text(path("good.json"));
    const size_t at = text.find(what);
    EXPECT_NE(at, std::string::npos) << what;
    return text.replace(at, what.size(), by);
  }
};

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  for (size_t i = 0; i < text.size();) {
    words.emplace_back(next_byte_word(text, i));
  }
  return words;
}

using Words = std::vector<std::string>;

TEST_F(BpeTest, CutsIntoWords) {
  EXPECT_EQ(words_of("I'll see  it, 2nd."),
            (Words{"I", "'ll", " see", " ", " it", ",", " 2", "nd", "."}));
  EXPECT_EQ(words_of("a\t b \n"), (Words{"a", "\t", " b", " \n"}));
  EXPECT_EQ(words_of("\xff\xff a"), (Words{"\xff\xff", " a"}));
}

TEST_F(BpeTest, JoinsTheMostFrequentPairFirst) {
  BpeLearner learner;
  // ab 5 times, bc 4 times (and as often as "aba" could be: not a word here).
  for (int i = 0; i < 4; ++i) learner.add("abc");
  learner.add("ab");
  EXPECT_EQ(learner.distinct_words(), 2);
  const Bpe bpe = learner.learn({.merges = 10, .special_tokens = {}});
  // "a"+"b", then "ab"+"c"; nothing else occurs twice.
  EXPECT_EQ(bpe.merges(), 2);
  EXPECT_EQ(bpe.size(), 258);
  EXPECT_EQ(bpe.token(256), "ab");
  EXPECT_EQ(bpe.token(257), "abc");
  EXPECT_EQ(bpe.encode("abcab"), (std::vector<int32_t>{257, 256}));
  EXPECT_EQ(bpe.find("abc"), 257);
  EXPECT_EQ(bpe.find("bc"), std::nullopt);
}

TEST_F(BpeTest, ANeighbourMayBeOfTheSameKind) {
  BpeLearner learner;
  learner.add("aaaaa aaaaa");
  const Bpe bpe = learner.learn({.merges = 1, .special_tokens = {}});
  const int32_t a = *bpe.find("a"), aa = *bpe.find("aa");
  EXPECT_EQ(bpe.encode("aaaaa"), (std::vector<int32_t>{aa, aa, a}));
}

TEST_F(BpeTest, BytesComeBack) {
  BpeLearner learner;
  for (int i = 0; i < 3; ++i)
    learner.add("für die Straße, 中文 \xf0\x9f\x8d\x8e");
  learner.learn({.merges = 30}).save(path("tokenizer.json"));
  const Bpe bpe = Bpe::open(path(""));
  EXPECT_TRUE(holds_bpe(path("")));
  std::mt19937 random(3);
  for (int length = 0; length < 300; ++length) {
    std::string text;
    for (int i = 0; i < length; ++i) {
      text += static_cast<char>(random() % (length % 2 ? 256 : 4));
      if (random() % 8 == 0) text += "ße";
    }
    EXPECT_EQ(bpe.decode(bpe.encode(text)), text);
  }
  EXPECT_EQ(bpe.decode(std::vector<int32_t>{0, 1, 2}), "");
  expect_error<c10::ValueError>([&] { bpe.decode(std::vector<int32_t>{-1}); },
                                {"got -1"});
}

TEST_F(BpeTest, RefusesBadFiles) {
  EXPECT_EQ(open(changed("\"version\"", "\"version\"")).merges(), 2);
  const struct {
    const char *what, *by;
    std::vector<std::string> message;
  } cases[] = {
      {"\"type\": \"BPE\"", "\"type\": \"WordPiece\"", {"model: type", "BPE"}},
      {"\"dropout\": null", "\"dropout\": 0.1", {"dropout", "null", "0.1"}},
      {"\"unk_token\": null", "\"unk_token\": \"a\"", {"unk_token", "\"a\""}},
      {"\"normalizer\": null", "\"normalizer\": {}", {"normalizer", "null"}},
      {"\"end_of_word_suffix\": null",
       "\"end_of_word_suffix\": \"</w>\"",
       {"end_of_word_suffix", "</w>"}},
      {"\"byte_fallback\": false",
       "\"byte_fallback\": true",
       {"byte_fallback"}},
      {"\"add_prefix_space\":false",
       "\"add_prefix_space\":true",
       {"pre_tokenizer: add_prefix_space", "false"}},
      {"\"use_regex\":true", "\"use_regex\":false", {"use_regex", "true"}},
      {"\"added_tokens\": []", "\"added_tokens\": [1]", {"added_tokens", "1"}},
      {"\"c\": ", "\"zz\": ", {"every byte", "\"c\""}},
      {"\"a\": ", "\"a\": 99", {"model: vocab", "whole number"}},
      {"\"ab\": 259", "\"ab\": 258", {"an id of its own"}},
      {"[\"a\", \"b\"]", "[\"a\", \"x y\"]", {"merges[0]", "x y"}},
      {"[\"a\", \"b\"]", "[\"a\", \"c\"]", {"merge 0", "\"ac\""}},
      {"[\"a\", \"b\"]", "7", {"merges[0]", "two tokens", "7"}},
      {"[\"ab\", \"ab\"]", "[\"a\", \"b\"]", {"merge 1", "twice"}},
  };
  for (const auto& bad : cases) {
    SCOPED_TRACE(bad.by);
    auto parts = bad.message;
    parts.push_back(path("tokenizer.json"));
    expect_error<c10::ValueError>([&] { open(changed(bad.what, bad.by)); },
                                  parts);
  }
}

TEST_F(BpeTest, RefusesSpecialTokensThatTextMakes) {
  BpeLearner learner;
  learner.add("stop stop");
  for (const char* token : {"stop", "", "!"}) {
    expect_error<c10::ValueError>(
        [&] { learner.learn({.special_tokens = {token}}); },
        {"special_tokens", "\"" + std::string(token) + "\""});
  }
  expect_error<c10::ValueError>(
      [&] {
        learner.learn({.special_tokens = {"<s>", "<s>"}});
      },
      {"twice"});
}

}  // namespace
}  // namespace luna::text
