#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>

#include "data/png_file.h"
#include "data/xz.h"
#include "luna/data/tasks.h"
#include "luna/io/text_file.h"
#include "support/temporary_folder.h"

namespace luna::data {
namespace {

namespace fs = std::filesystem;

std::string text_of(std::span<const uint8_t> ids) {
  return {ids.begin(), ids.end()};
}

std::string xz(const std::string& text) {
  const auto packed =
      encode_xz({reinterpret_cast<const uint8_t*>(text.data()), text.size()},
                XzContent::kText);
  return {packed.begin(), packed.end()};
}

/// All samples of a task as (label, text, second text), by split.
using Content = std::vector<std::multiset<std::string>>;
Content content(const Splits& splits) {
  Content all;
  for (const auto& split : splits.all()) {
    all.emplace_back();
    for (int64_t i = 0; i < split->size(); ++i) {
      const Sample s = (*split)[i];
      all.back().insert(fmt::format("{} {} | {}", s.label, text_of(s.ids),
                                    text_of(s.second)));
    }
  }
  return all;
}

class Readers : public testing::FolderTest {
 protected:
  void write(const std::string& name, const std::string& bytes) {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(path(name), std::ios::binary) << bytes;
  }

  Splits load(const std::string& task, LoadOptions options = {}) {
    options.folder = folder_.string();
    return load_task(task, options);
  }

  /// The message, which must hold every one of `parts`.
  void expect_refused(const std::string& task,
                      const std::vector<std::string>& parts) {
    try {
      load(task);
      FAIL() << "expected an error with " << parts.front();
    } catch (const c10::Error& error) {
      const std::string message = error.what_without_backtrace();
      for (const std::string& part : parts) {
        EXPECT_NE(message.find(part), std::string::npos) << message;
      }
      EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    }
  }
};

// --- text -------------------------------------------------------------------

std::string review(const std::string& split, int label, int number) {
  return fmt::format("{} review {} says {}", split, number,
                     label == 1 ? "yes" : "no");
}

/// Reviews 0 ... 74 of each label; number n is of movie tt(n / 3).
constexpr int kReviews = 75;

class TextReader : public Readers {
 protected:
  void write_folder(const std::string& root) {
    for (const std::string split : {"train", "test"}) {
      for (const int label : {0, 1}) {
        const std::string name = label == 1 ? "pos" : "neg";
        std::string urls;
        for (int n = 0; n < kReviews; ++n) {
          write(fmt::format("{}{}/{}/{}_{}.txt", root, split, name, n,
                            label == 1 ? 9 : 2),
                review(split, label, n));
          urls += fmt::format("http://www.imdb.com/title/tt{}{}/usercomments\n",
                              split, n / 3);
        }
        write(fmt::format("{}{}/urls_{}.txt", root, split, name), urls);
      }
    }
  }
  static std::string tsv(const std::string& split) {
    std::string text;
    for (const int label : {0, 1}) {
      for (int n = 0; n < kReviews; ++n) {
        text += fmt::format("{}\t{}\t{}\ttt{}{}\t{}\n", label, n,
                            label == 1 ? 9 : 2, split, n / 3,
                            review(split, label, n));
      }
    }
    return text;
  }
  void write_tsv(const std::string& root) {
    for (const std::string split : {"train", "test"}) {
      write(fmt::format("{}imdb_{}.tsv", root, split), tsv(split));
    }
  }
};

TEST_F(TextReader, ReadsTheFolderAclImdb) {
  write_folder("aclImdb/");
  write("aclImdb/train/unsup/0_0.txt", "not labelled");
  const Splits splits = load("text");
  EXPECT_EQ(splits.train->size(), 138);
  EXPECT_EQ(splits.validation->size(), 12);  // 2,000 of 25,000
  ASSERT_EQ(splits.test->size(), 150);
  const Sample third = (*splits.test)[2], last = (*splits.test)[149];
  EXPECT_EQ(text_of(third.ids), "test review 2 says no");
  EXPECT_EQ(third.label, 0);
  EXPECT_EQ(text_of(last.ids), "test review 74 says yes");
  EXPECT_EQ(last.label, 1);
  EXPECT_EQ(splits.train->info().vocabulary, 256);
}

TEST_F(TextReader, HoldsOutWithoutLossOrOverlap) {
  write_tsv("");
  const Content got = content(load("text"));
  std::multiset<std::string> both = got[0];
  both.insert(got[1].begin(), got[1].end());
  std::multiset<std::string> expected;
  for (const int label : {0, 1}) {
    for (int n = 0; n < kReviews; ++n) {
      expected.insert(
          fmt::format("{} {} | ", label, review("train", label, n)));
    }
  }
  EXPECT_EQ(both, expected);
  EXPECT_EQ(content(load("text", {.seed = 77})), got);  // a fixed split
}

TEST_F(TextReader, AllFormsGiveTheSame) {
  write_folder("a/");
  write_tsv("b/");
  for (const std::string split : {"train", "test"}) {
    write(fmt::format("c/imdb/imdb_{}.tsv.xz", split), xz(tsv(split)));
  }
  std::vector<Content> all;
  for (const std::string form : {"a", "b", "c"}) {
    all.push_back(content(load_task("text", {.folder = path(form)})));
  }
  EXPECT_EQ(all[0], all[1]);
  EXPECT_EQ(all[0], all[2]);
}

TEST_F(TextReader, CutsAtFourThousandBytesUnlessTold) {
  const std::string line = "1\t0\t9\ttt1\t" + std::string(5000, 'x') + "\n";
  write("imdb_train.tsv", line + "0\t1\t2\ttt2\tshort\twith a tab\n");
  write("imdb_test.tsv", line);
  EXPECT_EQ(load("text").test->longest(), 4000);
  EXPECT_EQ(load("text", {.max_length = 0}).test->longest(), 5000);
  EXPECT_EQ(load("text", {.max_length = 7}).test->longest(), 7);
  const Content got = content(load("text"));
  EXPECT_EQ(got[0].count("0 short\twith a tab | ") +
                got[1].count("0 short\twith a tab | "),
            1);
}

TEST_F(TextReader, BytesAreBytes) {
  const std::string odd = "caf\xe9 \xff\x01";
  write("imdb_train.tsv", "0\t0\t1\ttt1\t" + odd + "\n0\t1\t1\ttt1\tb\n");
  write("imdb_test.tsv", "1\t0\t9\ttt2\t" + odd + "\n");
  EXPECT_EQ(text_of((*load("text").test)[0].ids), odd);
}

TEST_F(TextReader, TakesAtMostSomeSamplesByTheSeed) {
  write_tsv("");
  const Content one = content(load("text", {.samples = 10, .seed = 1}));
  EXPECT_EQ(one[0].size(), 10u);
  EXPECT_EQ(one[1].size(), 10u);
  EXPECT_EQ(one[2].size(), 10u);
  EXPECT_EQ(content(load("text", {.samples = 10, .seed = 1})), one);
  EXPECT_NE(content(load("text", {.samples = 10, .seed = 2})), one);
}

TEST_F(TextReader, SaysWhatWasLookedForAndHowToGetIt) {
  expect_refused("text", {folder_.string(), "aclImdb/train/pos",
                          "imdb_train.tsv.xz", "ai.stanford.edu"});
  try {
    load_task("text", {});
    FAIL();
  } catch (const c10::ValueError& error) {
    EXPECT_NE(std::string(error.what()).find("--data DIR"), std::string::npos);
  }
  EXPECT_THROW(load_task("text", {.folder = path("none")}), c10::ValueError);
}

TEST_F(TextReader, NamesWhatIsWrongWithAFile) {
  write_tsv("");
  const std::string good = tsv("train");
  const auto with = [&](const std::string& train,
                        const std::vector<std::string>& parts) {
    write("imdb_train.tsv", train);
    std::vector<std::string> all = parts;
    all.push_back(path("imdb_train.tsv"));
    expect_refused("text", all);
  };
  with("", {"empty file"});
  with("0\t0\t1\ttt1\tfine\nnot a line\n", {"line 2", "5 columns", "got 1"});
  with("2\t0\t1\ttt1\ttext\n", {"line 1", "label: expected 0 to 1", "\"2\""});
  with("-1\t0\t1\ttt1\ttext\n", {"label: expected 0 to 1"});
  with("\t0\t1\ttt1\ttext\n", {"label: expected 0 to 1"});
  write("imdb_train.tsv", "0\t0\t1\ttt1\tonly one\n");
  expect_refused("text", {"text: expected at least 2 samples in train"});
}

TEST_F(TextReader, NamesAMissingTestSet) {
  write("imdb_train.tsv", tsv("train"));
  expect_refused("text", {path("imdb_test.tsv"), "No such file"});
  write_folder("");
  fs::remove_all(folder_ / "test" / "neg");
  expect_refused("text", {"test/neg", "expected a folder of reviews"});
  fs::create_directories(folder_ / "test" / "neg");
  expect_refused("text", {"test/neg", "127_8.txt"});
}

TEST_F(TextReader, NamesABadXzFile) {
  const std::string good = xz(tsv("train"));
  write("imdb_test.tsv.xz", xz(tsv("test")));
  const auto with = [&](const std::string& bytes, const std::string& part) {
    write("imdb_train.tsv.xz", bytes);
    expect_refused("text", {path("imdb_train.tsv.xz"), part});
  };
  with(good.substr(0, good.size() / 2), "cut short");
  with(tsv("train"), "expected an xz file, got something else");
  std::string flipped = good;
  flipped[flipped.size() / 2] ^= 4;
  with(flipped, "damaged");
}

// --- retrieval-imdb ---------------------------------------------------------

class PairsOfReviews : public TextReader {
 protected:
  /// Movie of the review's text, by construction of `review`.
  static std::string movie(const std::string& text) {
    const std::string split = text.substr(0, text.find(' '));
    const int number = std::stoi(text.substr(text.find("review ") + 7));
    return split + std::to_string(number / 3);
  }
};

TEST_F(PairsOfReviews, LabelSaysWhetherTheMovieIsOne) {
  write_tsv("");
  const Splits splits = load("retrieval-imdb");
  for (const auto& split : splits.all()) {
    ASSERT_GT(split->size(), 0);
    EXPECT_EQ(split->info().task, "retrieval-imdb");
    int64_t positive = 0;
    for (int64_t i = 0; i < split->size(); ++i) {
      const Sample s = (*split)[i];
      const std::string a = text_of(s.ids), b = text_of(s.second);
      EXPECT_NE(a, b);
      EXPECT_EQ(s.label == 1, movie(a) == movie(b)) << a << " | " << b;
      positive += s.label;
    }
    EXPECT_EQ(2 * positive, split->size());
  }
}

TEST_F(PairsOfReviews, NoReviewIsInTwoSplits) {
  write_tsv("");
  const Splits splits = load("retrieval-imdb");
  std::map<std::string, std::set<int>> where;
  int index = 0;
  for (const auto& split : splits.all()) {
    for (int64_t i = 0; i < split->size(); ++i) {
      where[text_of((*split)[i].ids)].insert(index);
      where[text_of((*split)[i].second)].insert(index);
    }
    ++index;
  }
  for (const auto& [text, splits_of] : where) {
    EXPECT_EQ(splits_of.size(), 1u) << text;
  }
}

TEST_F(PairsOfReviews, NeitherSideNorRatingsTellTheLabel) {
  write_tsv("");
  const Splits splits = load("retrieval-imdb");
  // Firsts, seconds, and pairs of ratings, each for label 0 and 1.
  std::multiset<std::string> sides[2][3];
  for (int64_t i = 0; i < splits.test->size(); ++i) {
    const Sample s = (*splits.test)[i];
    const std::string a = text_of(s.ids), b = text_of(s.second);
    sides[s.label][0].insert(a);
    sides[s.label][1].insert(b);
    sides[s.label][2].insert(a.substr(a.rfind(' ')) + b.substr(b.rfind(' ')));
  }
  for (int side = 0; side < 3; ++side) {
    EXPECT_EQ(sides[0][side], sides[1][side]) << side;
  }
}

TEST_F(PairsOfReviews, IsTheSameTwiceAndFromBothForms) {
  write_folder("a/");
  write_tsv("b/");
  const Content one =
      content(load_task("retrieval-imdb", {.folder = path("a")}));
  EXPECT_EQ(content(load_task("retrieval-imdb", {.folder = path("b")})), one);
}

TEST_F(PairsOfReviews, LeavesOutTextsThatAreThereTwice) {
  std::string train = tsv("train");
  train += "0\t99\t1\tttother\t" + review("test", 0, 3) + "\n";
  write("imdb_train.tsv", train);
  write("imdb_test.tsv", tsv("test"));
  const Content got = content(load("retrieval-imdb"));
  for (const int split : {0, 1}) {
    for (const std::string& pair : got[split]) {
      EXPECT_EQ(pair.find("test review 3 says no"), std::string::npos) << pair;
    }
  }
}

TEST_F(PairsOfReviews, NeedsMovieIds) {
  write_folder("");
  write("train/urls_pos.txt", "http://www.imdb.com/title/tt1/usercomments\n");
  expect_refused("retrieval-imdb", {"urls_pos.txt", "expected 2 lines"});
  write("train/urls_pos.txt", "no address\n");
  expect_refused("retrieval-imdb", {"urls_pos.txt: line 1", "/title/"});
}

// --- retrieval --------------------------------------------------------------

class AanReader : public Readers {
 protected:
  void write_splits(const std::string& train) {
    const std::string root = "lra_release/tsv_data/new_aan_pairs.";
    write(root + "train.tsv", train);
    write(root + "eval.tsv", "1.0\tC\tD\tthird paper\tfourth\n");
    write(root + "test.tsv", "0\tE\tF\tfifth\tsixth\n");
  }
};

TEST_F(AanReader, ReadsTheReleasedFiles) {
  write_splits("0.0\tA\tB\tfirst paper\tsecond paper\r\n1.0\tA\tC\tx\t\n");
  const Splits splits = load("retrieval");
  EXPECT_EQ(content(splits),
            (Content{{"0 first paper | second paper", "1 x | "},
                     {"1 third paper | fourth"},
                     {"0 fifth | sixth"}}));
  EXPECT_TRUE(splits.train->info().pairs);
}

TEST_F(AanReader, NamesWhatIsWrong) {
  expect_refused("retrieval", {"new_aan_pairs.train.tsv", "long-range-arena"});
  write_splits("0.0\tA\tB\tonly one text\n");
  expect_refused("retrieval", {"line 1: expected 5 columns", "got 4"});
  write_splits("0.0\tA\tB\tx\ty\n0.5\tA\tB\tx\ty\n");
  expect_refused("retrieval", {"line 2", "label", "\"0.5\""});
  write_splits("0.0\tA\tB\tx\ty\tz\n");
  expect_refused("retrieval", {"line 1", "got more"});
}

// --- image ------------------------------------------------------------------

/// Picture k: colours (k, 2 k, 3 k) in its first pixel, (255, 255, 255) in its
/// second, black elsewhere; label k % 10.
constexpr int kBatch = 4;

class ImageReader : public Readers {
 protected:
  static std::string record(int k) {
    std::string bytes(3073, '\0');
    bytes[0] = static_cast<char>(k % 10);
    for (int channel = 0; channel < 3; ++channel) {
      bytes[1 + 1024 * channel] = static_cast<char>((channel + 1) * k);
      bytes[1 + 1024 * channel + 1] = '\xff';
    }
    return bytes;
  }
  static std::string batch_name(int b) {
    return b == 5 ? "test_batch" : fmt::format("data_batch_{}", b + 1);
  }
  void write_binary(const std::string& root) {
    for (int b = 0; b < 6; ++b) {
      std::string bytes;
      for (int i = 0; i < kBatch; ++i) bytes += record(b * kBatch + i);
      write(root + batch_name(b) + ".bin", bytes);
    }
  }
  void write_png(const std::string& root) {
    std::string labels[2];
    for (int b = 0; b < 6; ++b) {
      Pixels sheet{.height = kBatch, .width = 1024, .channels = 3};
      for (int i = 0; i < kBatch; ++i) {
        const int k = b * kBatch + i;
        std::vector<uint8_t> row(3072);
        for (int channel = 0; channel < 3; ++channel) {
          row[channel] = static_cast<uint8_t>((channel + 1) * k);
          row[3 + channel] = 255;
        }
        sheet.bytes.insert(sheet.bytes.end(), row.begin(), row.end());
        std::string& list = labels[b == 5 ? 1 : 0];
        list += fmt::format("{}{}", list.empty() ? "[" : ",", k % 10);
      }
      write(root + batch_name(b) + ".png", encode_png(sheet));
    }
    write(root + "train_lables.json", labels[0] + "]");
    write(root + "test_labels.json", labels[1] + "]");
  }
};

TEST_F(ImageReader, MakesGreyOfColours) {
  write_binary("cifar-10-batches-bin/");
  const Splits splits = load("image");
  EXPECT_EQ(splits.train->size(), 18);
  EXPECT_EQ(splits.validation->size(), 2);  // 5,000 of 50,000
  ASSERT_EQ(splits.test->size(), kBatch);
  const Sample s = (*splits.test)[1];  // k = 21
  EXPECT_EQ(s.label, 1);
  ASSERT_EQ(s.ids.size(), 1024u);
  EXPECT_EQ(s.ids[0], 38);  // .2989 * 21 + .587 * 42 + .114 * 63 = 38.11
  EXPECT_EQ(s.ids[1], 255);
  EXPECT_EQ(s.ids[2], 0);
  EXPECT_EQ(splits.test->info().height, 32);
}

TEST_F(ImageReader, KeepsColoursAsPlanes) {
  write_binary("");
  const Splits splits = load("cifar10");
  EXPECT_EQ(splits.test->info().channels, 3);
  const Sample s = (*splits.test)[1];  // k = 21
  ASSERT_EQ(s.ids.size(), 3072u);
  for (int channel = 0; channel < 3; ++channel) {
    EXPECT_EQ(s.ids[1024 * channel], 21 * (channel + 1));
    EXPECT_EQ(s.ids[1024 * channel + 1], 255);
    EXPECT_EQ(s.ids[1024 * channel + 2], 0);
  }
  // The same pictures are held out as in grey.
  const Splits grey = load("image");
  for (int64_t i = 0; i < splits.validation->size(); ++i) {
    EXPECT_EQ((*splits.validation)[i].label, (*grey.validation)[i].label);
  }
}

TEST_F(ImageReader, BothFormsGiveTheSame) {
  write_binary("a/");
  write_png("b/");
  for (const std::string task : {"image", "cifar10"}) {
    EXPECT_EQ(content(load_task(task, {.folder = path("a")})),
              content(load_task(task, {.folder = path("b")})));
  }
}

TEST_F(ImageReader, NamesWhatIsWrongWithABinaryFile) {
  expect_refused(
      "image", {"data_batch_1.bin", "data_batch_1.png", "www.cs.toronto.edu"});
  const auto with = [&](const std::string& bytes,
                        const std::vector<std::string>& parts) {
    write_binary("");
    write("data_batch_3.bin", bytes);
    std::vector<std::string> all = parts;
    all.push_back(path("data_batch_3.bin"));
    expect_refused("image", all);
  };
  with("", {"empty file"});
  with(record(1).substr(0, 3000), {"multiple of 3073", "got 3000"});
  with(record(1) + "\x0a" + std::string(3072, '\0'),
       {"picture 1: label: expected 0 to 9, got 10"});
  write_binary("");
  fs::remove(path("data_batch_5.bin"));
  expect_refused("image", {path("data_batch_5.bin"), "No such file"});
}

TEST_F(ImageReader, NamesWhatIsWrongWithPng) {
  write_png("");
  const std::string good = io::read_text(path("data_batch_2.png"));
  const auto with = [&](const std::string& name, const std::string& bytes,
                        const std::string& part) {
    write_png("");
    write(name, bytes);
    expect_refused("image", {path(name), part});
  };
  with("data_batch_2.png", good.substr(0, good.size() / 2), "cut short");
  with("data_batch_2.png", "no png at all", "expected a PNG file");
  std::string flipped = good;
  flipped[flipped.size() / 2] ^= 1;
  with("data_batch_2.png", flipped, "expected a PNG file");
  Pixels small{.height = 1, .width = 2, .channels = 1, .bytes = {1, 2}};
  with("data_batch_2.png", encode_png(small),
       "expected rows of 1024 RGB pixels, got 2 pixels of 1 channels");
  with("train_lables.json", "[1, 2]", "expected at least 4 labels");
  with("train_lables.json", "[1, 2", "expected a JSON array of labels");
  with("train_lables.json", "[\"cat\"]", "expected a JSON array of labels");
  with("train_lables.json", "[0, 10]", "label 1: expected 0 to 9, got 10");
  std::string many = "[0";
  for (int i = 1; i < 5 * kBatch + 1; ++i) many += ",0";
  with("train_lables.json", many + "]", "expected 20 labels");
}

// --- listops ----------------------------------------------------------------

class ListOpsReader : public Readers {
 protected:
  void write_splits(const std::string& train) {
    const std::string root = "lra_release/listops-1000/basic_";
    write(root + "train.tsv", train);
    write(root + "val.tsv", "Source\tTarget\n7\t7\n");
    write(root + "test.tsv", "Source\tTarget\n( ( [SM 9 ) 9 ) ]\t8\n");
  }
};

TEST_F(ListOpsReader, ReadsTheReleasedFiles) {
  write_splits(
      "Source\tTarget\n"
      "( ( ( ( [MAX 2 ) ( ( ( [MIN 4 ) 7 ) ] ) ) 0 ) ] )\t4\n"
      "[MED 1 2 3 ]\t2\n");
  const Splits splits = load("listops");
  ASSERT_EQ(splits.train->size(), 2);
  using Ids = std::vector<uint8_t>;
  EXPECT_TRUE(std::ranges::equal((*splits.train)[0].ids,
                                 Ids{11, 2, 10, 4, 7, 14, 0, 14}));
  EXPECT_EQ((*splits.train)[0].label, 4);
  EXPECT_TRUE(std::ranges::equal((*splits.train)[1].ids, Ids{12, 1, 2, 3, 14}));
  EXPECT_TRUE(std::ranges::equal((*splits.test)[0].ids, Ids{13, 9, 9, 14}));
  EXPECT_EQ(splits.validation->size(), 1);
  EXPECT_EQ(splits.train->info().vocabulary, 15);
}

TEST_F(ListOpsReader, NamesWhatIsWrong) {
  expect_refused("listops", {"listops-1000/basic_train.tsv", "lra_release"});
  write_splits("[MAX 1 2 ]\t2\n");
  expect_refused("listops", {"line 1", "Source and Target"});
  write_splits("Source\tTarget\n");
  expect_refused("listops", {"basic_train.tsv", "expected samples"});
  write_splits("Source\tTarget\n[MAX 1 2 ]\t2\n[SUM 1 2 ]\t3\n");
  expect_refused("listops", {"basic_train.tsv: line 3", "[SUM"});
  write_splits("Source\tTarget\n[MAX 1 2 ]\t10\n");
  expect_refused("listops", {"line 2: Target", "expected 0 to 9"});
  write_splits("Source\tTarget\n[MAX 1 2 ]\n");
  expect_refused("listops", {"line 2: expected 2 columns"});
}

// --- generated --------------------------------------------------------------

TEST(Generated, SplitsAreCutFromOneSet) {
  const LoadOptions options{
      .samples = 30,
      .seed = 5,
      .settings = {{"min_length", int64_t{10}}, {"max_length", int64_t{40}}}};
  const Splits splits = load_task("listops", options);
  std::set<std::string> distinct;
  for (const auto& split : splits.all()) {
    EXPECT_EQ(split->size(), 30);
    EXPECT_LT(split->longest(), 40);
    for (int64_t i = 0; i < split->size(); ++i) {
      distinct.insert(text_of((*split)[i].ids));
    }
  }
  EXPECT_EQ(distinct.size(), 90u);
  EXPECT_EQ(content(load_task("listops", options)), content(splits));
}

TEST(Generated, PresetsAndSettingsOfPathfinder) {
  const Splits large = load_task(
      "pathfinder",
      {.samples = 2, .settings = {{"preset", std::string("64-easy")}}});
  EXPECT_EQ(large.train->info().height, 64);
  EXPECT_EQ(large.test->longest(), 64 * 64);
  const Splits usual = load_task("pathfinder", {.samples = 2});
  EXPECT_EQ(usual.train->info().width, 32);
  const Splits changed =
      load_task("pathfinder",
                {.samples = 2, .settings = {{"contour_length", int64_t{6}}}});
  EXPECT_NE(content(changed), content(usual));
}

TEST(Generated, RefusesWhatItDoesNotRead) {
  EXPECT_THROW(
      load_task("pathfinder",
                {.samples = 2, .settings = {{"preset", std::string("31")}}}),
      c10::ValueError);
  EXPECT_THROW(load_task("pathfinder", {.folder = "."}), c10::ValueError);
  EXPECT_THROW(load_task("needles", {.folder = "."}), c10::ValueError);
  EXPECT_THROW(
      load_task("needles", {.samples = 2, .settings = {{"depth", int64_t{3}}}}),
      c10::ValueError);
  EXPECT_THROW(load_task("needles", {.samples = 2, .max_length = 3}),
               c10::ValueError);
  EXPECT_THROW(load_task("listops", {.samples = -1}), c10::ValueError);
}

TEST(Generated, ProgressMayStopIt) {
  struct Stop {};
  EXPECT_THROW(
      load_task("needles",
                {.samples = 100,
                 .progress = [](double, const auto&) { throw Stop(); }}),
      Stop);
}

// --- the table of tasks -----------------------------------------------------

TEST(Tasks, AreWellFormed) {
  std::set<std::string> names;
  for (const Task& task : tasks()) {
    EXPECT_TRUE(names.insert(task.name).second) << task.name;
    EXPECT_EQ(task.info.task, task.name);
    EXPECT_EQ(std::ssize(task.classes), task.info.classes) << task.name;
    EXPECT_FALSE(task.what.empty() || task.how.empty()) << task.name;
    EXPECT_EQ(&find_task(task.name), &task);
  }
}

TEST(Tasks, UnknownOnesListTheKnown) {
  try {
    find_task("imgae");
    FAIL();
  } catch (const c10::ValueError& error) {
    const std::string message = error.what_without_backtrace();
    EXPECT_NE(message.find("retrieval-imdb"), std::string::npos) << message;
    EXPECT_NE(message.find("nearest: image"), std::string::npos) << message;
  }
}

TEST(Tasks, AreAllInTheDocumentation) {
  const char* root = std::getenv("LUNA_SOURCE_DIR");
  ASSERT_NE(root, nullptr);
  const std::string page = io::read_text(std::string(root) + "/docs/data.md");
  for (const Task& task : tasks()) {
    EXPECT_NE(page.find(fmt::format("| `{}` | {} |", task.name, task.what)),
              std::string::npos)
        << task.name << ": " << task.what;
  }
}

}  // namespace
}  // namespace luna::data
