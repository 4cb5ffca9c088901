#include "luna/train/sweep_list.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "luna/io/text_file.h"
#include "luna/train/sweep.h"
#include "support/temporary_folder.h"

namespace luna::train {
namespace {

namespace fs = std::filesystem;

/// "a.json 1-3 steps=7".
std::string text_of(const SweepConfig& c) {
  std::string text = c.file + " " + std::to_string(c.seeds.first) + "-" +
                     std::to_string(c.seeds.last);
  for (const std::string& assignment : c.overrides) text += " " + assignment;
  return text;
}

std::vector<std::string> read(const std::vector<std::string>& words,
                              Seeds seeds = {}) {
  std::vector<std::string> all;
  for (const SweepConfig& c : read_sweep_configs(words, seeds)) {
    all.push_back(text_of(c));
  }
  return all;
}

std::string error_of(const std::string& word) {
  try {
    read({word});
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "";
}

class SweepList : public luna::testing::FolderTest {
 protected:
  std::string list(const std::string& text) {
    const std::string file = folder_ / "runs.txt";
    io::write_text(file, text);
    return file;
  }
};

TEST_F(SweepList, ReadsSeedsBehindAColon) {
  EXPECT_EQ(read({"a.json", "b/c.json:3", "d.json:2-3", "e.json:0-0"}, {4, 5}),
            (std::vector<std::string>{"a.json 4-5", "b/c.json 1-3",
                                      "d.json 2-3", "e.json 0-0"}));
}

TEST_F(SweepList, RefusesSeedsThatAreNone) {
  for (const char* word : {"a.json:x", "a.json:", "a.json:0", "a.json:3-2",
                           "a.json:1-", "a.json:-3", "a.json:1.5"}) {
    const std::string error = error_of(word);
    EXPECT_TRUE(error.starts_with("expected CONFIG")) << word << error;
    EXPECT_TRUE(error.ends_with(word)) << error;
  }
}

TEST_F(SweepList, AFileMayHaveAColonInItsName) {
  const std::string file = folder_ / "half:2";
  io::write_text(file, "{}");
  EXPECT_EQ(read({file}), std::vector<std::string>{file + " 1-1"});
  EXPECT_EQ(read({file + ":2"}), std::vector<std::string>{file + " 1-2"});
}

TEST_F(SweepList, ReadsAListWithPathsFromItsOwnFolderOn) {
  const std::string file =
      list("# first\n\n  a.json:2 patience=8 steps=7 # why\nsub/b.json#\n");
  EXPECT_EQ(read({"c.json", "@" + file}, {5, 6}),
            (std::vector<std::string>{
                "c.json 5-6",
                (folder_ / "a.json").string() + " 1-2 patience=8 steps=7",
                (folder_ / "sub/b.json").string() + " 5-6"}));
}

TEST_F(SweepList, NamesTheLineOfAList) {
  const std::string file = list("a.json\nb.json steps 7\n");
  EXPECT_EQ(error_of("@" + file),
            file + ":2: expected KEY=VALUE behind the config, got steps");
  EXPECT_EQ(error_of("@" + list("a.json:x")).find(file + ":1: expected CONFIG"),
            0u);
  EXPECT_EQ(error_of("@" + list("# none\n")),
            file + ": expected a list of configs, one a line, got none");
}

TEST_F(SweepList, TheListThatIsShippedIsASweep) {
  const std::string root = std::getenv("LUNA_SOURCE_DIR");
  const auto runs =
      read_sweep_configs({"@" + root + "/configs/lra/runs.txt"}, {});
  EXPECT_GT(runs.size(), 50u);
  EXPECT_NO_THROW(
      plan_sweep({.configs = runs, .overrides = {"autocast=bf16"}}));
}

}  // namespace
}  // namespace luna::train
