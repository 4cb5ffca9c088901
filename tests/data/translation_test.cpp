#include <gtest/gtest.h>
#include <luna/data/translation.h>
#include <luna/io/safetensors.h>
#include <luna/io/text_file.h>

#include <ATen/ops/zeros.h>

#include <map>
#include <set>

#include "data/text_lines.h"
#include "support/errors.h"
#include "support/temporary_folder.h"
#include "text/plain_text.h"

namespace luna::data {
namespace {

using luna::testing::expect_error;

class TranslationTest : public luna::testing::FolderTest {};

TEST_F(TranslationTest, LinesEndInEitherWay) {
  using Views = std::vector<std::string_view>;
  EXPECT_EQ(lines_of("a\r\nb\n\nc"), (Views{"a", "b", "", "c"}));
  EXPECT_EQ(lines_of("\xef\xbb\xbf"
                     "a\n"),
            (Views{"a"}));
  EXPECT_EQ(lines_of(""), Views{});
  EXPECT_TRUE(is_tsv("a.tsv.xz"));
  EXPECT_FALSE(is_tsv("tsv.gz"));
}

TEST_F(TranslationTest, TextIsMadeUniform) {
  EXPECT_EQ(text::to_nfc("A\xcc\x8a e\xcc\xa3\xcc\x82"), "Å ệ");
  EXPECT_EQ(text::squeeze_space(" a\t\xc2\xa0 b\xe3\x80\x80"), "a b");
  EXPECT_EQ(text::plain_punctuation("»Ja« – „so“… it’s"),
            "\"Ja\" - \"so\"... it's");
}

TEST_F(TranslationTest, WhatIsLeftOutIsCounted) {
  ParallelText text({.max_characters = 20, .max_ratio = 3});
  text.add("one", "eins");
  text.add(" one ", "eins");    // the same once it is uniform
  text.add("one", "ein");       // not the same
  text.add("two", " ");         // empty
  text.add("bad \xff", "gut");  // not UTF-8
  text.add(std::string(21, 'x'), "a long line has many");
  text.add("a", "four");  // 4 > 3 * 1
  text.add("ä", "äää");   // 3 characters, not 6 bytes
  const ParallelCounts& counts = text.counts();
  EXPECT_EQ(counts.read, 8);
  EXPECT_EQ(counts.kept, 3);
  EXPECT_EQ(counts.duplicates, 1);
  EXPECT_EQ(counts.empty, 1);
  EXPECT_EQ(counts.not_utf8, 1);
  EXPECT_EQ(counts.too_long, 1);
  EXPECT_EQ(counts.uneven, 1);
  int64_t sum = counts.kept;
  for (const auto& [reason, count] : dropped(counts)) sum += count;
  EXPECT_EQ(sum, counts.read);
}

TEST_F(TranslationTest, FilesMustFitEachOther) {
  io::write_text(path("two"), "a\nb\n");
  io::write_text(path("three"), "a\nb\nc\n");
  io::write_text(path("empty"), "");
  io::write_text(path("bad.tsv"), "a\tb\na\tb\tc\n");
  ParallelText text;
  expect_error<c10::ValueError>(
      [&] { text.add_files(path("two"), path("three")); },
      {path("three"), "expected 2 lines", path("two"), "got 3"});
  expect_error<c10::ValueError>(
      [&] { text.add_files(path("two"), path("empty")); },
      {path("empty"), "empty file"});
  expect_error<c10::ValueError>([&] { text.add_tsv(path("bad.tsv")); },
                                {"bad.tsv: line 2", "two columns", "got 3"});
}

/// Pairs of many lengths; token 1 is one byte.
struct Example {
  Example() {
    ParallelText text({.drop_duplicates = false, .max_characters = 0});
    for (int i = 0; i < 500; ++i) {
      text.add(std::string(1 + i * 7 % 40, 'a'),
               std::string(1 + i * 3 % 30, 'b'));
    }
    text.add("ab", std::string(100, 'c'));
    data.emplace(TranslationData::encode(text, tokenizer, 60, too_long));
  }

  text::Bpe tokenizer = text::BpeLearner().learn({.merges = 0});
  int64_t too_long = 0;
  std::optional<TranslationData> data{};
};

TEST_F(TranslationTest, SavedAndOpenedAgain) {
  const Example example;
  EXPECT_EQ(example.too_long, 1);
  EXPECT_EQ(example.data->size(), 500);
  example.data->save(path("train.safetensors"));
  const auto again =
      TranslationData::open(path(""), "train", example.tokenizer.size());
  EXPECT_EQ(again.size(), 500);
  EXPECT_EQ(example.tokenizer.decode(again[11].source),
            std::string(1 + 77 % 40, 'a'));
  EXPECT_EQ(example.tokenizer.decode(again[11].target),
            std::string(1 + 33 % 30, 'b'));
}

TEST_F(TranslationTest, RefusesAnotherVocabulary) {
  const Example example;
  example.data->save(path("train.safetensors"));
  expect_error<c10::ValueError>(
      [&] { TranslationData::open(path(""), "train", 50); },
      {path("train.safetensors"), "source", "0 to 49"});
  expect_error<c10::ValueError>(
      [&] { TranslationData::open(path(""), "test", 50); },
      {path("test.safetensors"), "luna data translation"});
  const auto ids = at::zeros({4}, at::kInt),
             offsets = at::zeros({2}, at::kLong);
  io::write_safetensors(path("bad.safetensors"), {{"source", ids},
                                                  {"source_offsets", offsets},
                                                  {"target", ids},
                                                  {"target_offsets", offsets}});
  expect_error<c10::ValueError>(
      [&] { TranslationData::open(path(""), "bad", 50); },
      {path("bad.safetensors"), "source_offsets", "0 to 4"});
  const auto without = text::BpeLearner().learn({.special_tokens = {"<pad>"}});
  expect_error<c10::ValueError>([&] { translation_specials("X", without); },
                                {"X", "<s>"});
}

TEST_F(TranslationTest, BatchesHoldEveryPairOnce) {
  const Example example;
  const auto batches = token_batches(*example.data, 256, 7, 0);
  std::multiset<int64_t> seen;
  int64_t real = 0, laid_out = 0;
  const auto specials = translation_specials("", example.tokenizer);
  for (const auto& indices : batches) {
    seen.insert(indices.begin(), indices.end());
    const auto batch = make_translation_batch(*example.data, indices, specials);
    for (const Sequences* side : {&batch.first, &*batch.second}) {
      EXPECT_LE(side->ids.numel(), 256);
      laid_out += side->ids.numel();
      real += side->lengths.sum().item<int64_t>();
    }
  }
  EXPECT_EQ(seen.size(), 500u);
  EXPECT_EQ(std::set<int64_t>(seen.begin(), seen.end()).size(), 500u);
  // In the order of the data two fifths would be padding.
  EXPECT_LT(laid_out - real, laid_out / 4);
  EXPECT_EQ(batches, token_batches(*example.data, 256, 7, 0));
  EXPECT_NE(batches, token_batches(*example.data, 256, 7, 1));
  EXPECT_NE(batches, token_batches(*example.data, 256, 8, 0));
  expect_error<c10::ValueError>([&] { token_batches(*example.data, 20, 7, 0); },
                                {"max_tokens", "got 20"});
}

TEST_F(TranslationTest, BatchesSayWhatTheDecoderReadsAndWants) {
  ParallelText text;
  text.add("ab", "c");
  text.add("a", "bcd");
  const auto tokenizer = text::BpeLearner().learn({.merges = 0});
  int64_t none = 0;
  const auto data = TranslationData::encode(text, tokenizer, 0, none);
  const auto specials = translation_specials("", tokenizer);
  const auto batch =
      make_translation_batch(data, std::vector<int64_t>{0, 1}, specials);
  const int64_t a = *tokenizer.find("a"), b = a + 1, c = a + 2, d = a + 3;
  const int64_t pad = specials.pad, start = specials.start, end = specials.end;
  const auto row = [](const at::Tensor& ids) {
    const int64_t* at = ids.const_data_ptr<int64_t>();
    return std::vector<int64_t>(at, at + ids.numel());
  };
  using Row = std::vector<int64_t>;
  EXPECT_EQ(row(batch.first.ids), (Row{a, b, end, a, end, pad}));
  EXPECT_EQ(row(batch.first.lengths), (Row{3, 2}));
  EXPECT_FALSE(batch.first.full);
  EXPECT_EQ(row(batch.second->ids), (Row{start, c, pad, pad, start, b, c, d}));
  EXPECT_EQ(row(batch.labels), (Row{c, end, b, c, d, end}));
  EXPECT_EQ(row(batch.second->lengths), (Row{2, 4}));
}

}  // namespace
}  // namespace luna::data
