// IMDB's reviews, and the pairs of retrieval-imdb, from folders and tables.

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "data/readers.h"
#include "data/xz.h"

namespace luna::data {
namespace {

std::string xz(const std::string& text) {
  const auto packed =
      encode_xz({reinterpret_cast<const uint8_t*>(text.data()), text.size()},
                XzContent::kText);
  return {packed.begin(), packed.end()};
}

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

}  // namespace
}  // namespace luna::data
