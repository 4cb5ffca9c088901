#include <gtest/gtest.h>
#include <luna/data/glue.h>
#include <luna/io/text_file.h>

#include <cstdlib>

#include "support/errors.h"
#include "support/temporary_folder.h"

namespace luna::data {
namespace {

using luna::testing::expect_error;

class GlueTest : public luna::testing::FolderTest {
 protected:
  GlueFile read(const std::string& task, const std::string& text) {
    io::write_text(path("file.tsv"), text);
    return read_glue(find_glue_task(task), path("file.tsv"));
  }
};

TEST_F(GlueTest, ReadsColumnsByName) {
  const auto file =
      read("mrpc",
           "\xef\xbb\xbfQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n"
           "1\t5\t6\tsaid \"once\tsaid twice\"\r\n0\t7\t8\ta\tb\r\n");
  ASSERT_EQ(file.examples.size(), 2u);
  EXPECT_EQ(file.examples[0].first, "said \"once");
  EXPECT_EQ(file.examples[0].second, "said twice\"");
  EXPECT_EQ(file.examples[0].label, 1);
  EXPECT_EQ(file.examples[1].label, 0);
}

TEST_F(GlueTest, ReadsFilesWithoutAHeader) {
  const auto file = read("cola", "gj04\t1\t\tIt rained.\ngj04\t0\t*\tIt rain.");
  ASSERT_EQ(file.examples.size(), 2u);
  EXPECT_EQ(file.examples[1].first, "It rain.");
  EXPECT_EQ(file.examples[1].second, std::nullopt);
  EXPECT_EQ(file.examples[1].label, 0);
}

TEST_F(GlueTest, ReadsScoresAndNamedClasses) {
  const std::string header = "index\tsentence1\tsentence2\tscore\n";
  EXPECT_EQ(read("stsb", header + "0\ta\tb\t3.75\n").examples[0].label, 3.75);
  const std::string sick =
      "sentence_A\tsentence_B\tentailment_judgment\na\tb\t";
  EXPECT_EQ(read("sick", sick + "ENTAILMENT\n").examples[0].label, 0);
  EXPECT_EQ(read("sick", sick + "CONTRADICTION\n").examples[0].label, 2);
}

TEST_F(GlueTest, LeavesOutBrokenRowsWhereTheFilesHaveThem) {
  const std::string header = "id\tquestion1\tquestion2\tis_duplicate\n";
  const auto file = read("qqp", header + "1\ta\tb\t1\n2\tcut\n3\ta\tb\t0\n");
  EXPECT_EQ(file.examples.size(), 2u);
  EXPECT_EQ(file.left_out, 1);
}

TEST_F(GlueTest, RefusesBadFiles) {
  const struct {
    const char* task;
    const char* text;
    std::vector<std::string> message;
  } bad[] = {
      {"sst2", "", {"empty file"}},
      {"sst2", "sentence\tlabel\n", {"an example", "none"}},
      {"sst2", "text\tlabel\na\t1\n", {"line 1", "\"sentence\"", "text"}},
      {"sst2", "sentence\tlabel\na\n", {"line 2", "2 columns", "got 1"}},
      {"sst2", "sentence\tlabel\na\t2\n", {"line 2: label", "0, 1", "\"2\""}},
      {"cola", "gj04\t1\tIt rained.\n", {"line 1", "4 columns", "got 3"}},
      {"stsb",
       "sentence1\tsentence2\tscore\na\tb\t3,5\n",
       {"line 2: score", "a number", "3,5"}},
  };
  for (const auto& [task, text, message] : bad) {
    SCOPED_TRACE(text);
    auto parts = message;
    parts.push_back(path("file.tsv"));
    expect_error<c10::ValueError>([&] { read(task, text); }, parts);
  }
  expect_error<c10::ValueError>([] { find_glue_task("sst"); },
                                {"nearest: sst2", "got sst"});
  expect_error<c10::ValueError>(
      [&] { find_glue_file(find_glue_task("rte"), path("."), "train"); },
      {"RTE/train.tsv", "none of them"});
}

TEST_F(GlueTest, ReadsThePublishedFiles) {
  const char* data = std::getenv("LUNA_DATA");
  if (data == nullptr) {
    GTEST_SKIP() << "needs LUNA_DATA, a folder with glue/*.tsv";
  }
  const struct {
    const char* task;
    const char* split;
    size_t examples;
  } published[] = {{"sst2", "train", 67349},    {"sst2", "validation", 872},
                   {"cola", "train", 8551},     {"cola", "validation", 527},
                   {"mrpc", "train", 3576},     {"mrpc", "validation", 500},
                   {"sick", "train", 4500},     {"sick", "validation", 500},
                   {"qnli", "validation", 5463}};
  for (const auto& [name, split, examples] : published) {
    SCOPED_TRACE(std::string(name) + " " + split);
    const GlueTask& task = find_glue_task(name);
    const auto file = read_glue(task, find_glue_file(task, data, split));
    EXPECT_EQ(file.examples.size(), examples);
    EXPECT_EQ(file.left_out, 0);
  }
}

}  // namespace
}  // namespace luna::data
