#include <gtest/gtest.h>
#include <luna/data/translation.h>
#include <luna/io/safetensors.h>
#include <luna/io/text_file.h>

#include <ATen/ATen.h>

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

  const PackedShape shape{.pairs = 3, .source = 6, .target = 8, .longest = 4};
  const std::vector<int64_t> indices{0, 1};
  const auto packed =
      make_packed_translation_batch(data, indices, specials, shape);
  EXPECT_EQ(packed.indices, indices);
  EXPECT_EQ(row(packed.first.ids), (Row{a, b, end, a, end, pad}));
  EXPECT_EQ(row(packed.first.packed->starts), (Row{0, 3, 5, 5, 6}));
  EXPECT_EQ(row(packed.first.lengths), (Row{3, 2, 0}));
  EXPECT_EQ(packed.first.packed->longest, 4);
  EXPECT_EQ(row(packed.second->ids), (Row{start, c, start, b, c, d, pad, pad}));
  EXPECT_EQ(row(packed.second->packed->starts), (Row{0, 2, 6, 6, 8}));
  EXPECT_EQ(row(packed.second->lengths), (Row{2, 4, 0}));
  EXPECT_TRUE(packed.padded_labels);
  EXPECT_EQ(row(packed.labels),
            (Row{c, end, b, c, d, end, kNoLabel, kNoLabel}));
  // Room for a filler is missing, for a pair, for the longest.
  for (const PackedShape& small :
       {PackedShape{2, 5, 8, 4}, PackedShape{1, 6, 8, 4},
        PackedShape{2, 6, 8, 3}}) {
    expect_error<c10::ValueError>(
        [&] { make_packed_translation_batch(data, indices, specials, small); },
        {"shape", "2 pairs of 5 and 6 tokens", "sequences of 4"});
  }
}

/// Tokens of both sides, with a special one each.
std::pair<int64_t, int64_t> tokens_of(const TranslationData& data,
                                      const std::vector<int64_t>& batch) {
  std::pair<int64_t, int64_t> sum;
  for (const int64_t i : batch) {
    sum.first += std::ssize(data[i].source) + 1;
    sum.second += std::ssize(data[i].target) + 1;
  }
  return sum;
}

TEST_F(TranslationTest, PackedBatchesAreFullAndAlike) {
  const Example example;
  const auto& data = *example.data;
  constexpr int64_t kMost = 256;
  std::multiset<std::pair<int64_t, int64_t>> sizes[2];
  for (const int64_t epoch : {0, 1}) {
    std::set<int64_t> seen;
    size_t pairs = 0;
    for (const auto& batch : packed_batches(data, kMost, 7, epoch)) {
      seen.insert(batch.begin(), batch.end());
      pairs += batch.size();
      const auto [source, target] = tokens_of(data, batch);
      EXPECT_LE(std::max(source, target), kMost);
      EXPECT_GE(std::max(source, target), kMost * 9 / 10);
      sizes[epoch].emplace(source, target);
    }
    EXPECT_EQ(pairs, 500u);
    EXPECT_EQ(seen.size(), 500u);
  }
  EXPECT_EQ(sizes[0], sizes[1]);
  const auto batches = packed_batches(data, kMost, 7, 0);
  EXPECT_LT(batches.size(), token_batches(data, kMost, 7, 0).size());
  EXPECT_EQ(batches, packed_batches(data, kMost, 7, 0));
  EXPECT_NE(batches, packed_batches(data, kMost, 7, 1));
  EXPECT_NE(batches, packed_batches(data, kMost, 8, 0));
  // A source of 40 with its </s>
  EXPECT_NO_THROW(packed_batches(data, 41, 7, 0));
  expect_error<c10::ValueError>([&] { packed_batches(data, 40, 7, 0); },
                                {"packed_batches: max_tokens", "got 40"});
}

TEST_F(TranslationTest, OneShapeHasRoomForEveryPackedBatch) {
  const Example example;
  const auto& data = *example.data;
  const auto shape = packed_shape(data, packed_batches(data, 256, 7, 0));
  const auto specials = translation_specials("", example.tokenizer);
  EXPECT_EQ(shape.source % 64, 0);
  EXPECT_EQ(shape.target % 64, 0);
  EXPECT_LE(std::max(shape.source, shape.target), 256 + 64);
  for (const int64_t epoch : {0, 1, 2}) {
    for (const auto& indices : packed_batches(data, 256, 7, epoch)) {
      const auto batch =
          make_packed_translation_batch(data, indices, specials, shape);
      for (const auto& side : {batch.first, *batch.second}) {
        const auto lengths = side.packed->starts.diff();
        EXPECT_LE(lengths.max().item<int64_t>(), side.packed->longest);
        EXPECT_GE(lengths[-1].item<int64_t>(), 1) << "no filler";
      }
    }
  }
  expect_error<c10::ValueError>([&] { packed_shape(data, {}); }, {"one batch"});
}

}  // namespace
}  // namespace luna::data
