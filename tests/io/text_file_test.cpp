#include "luna/io/text_file.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "support/temporary_folder.h"

namespace luna::io {
namespace {

namespace fs = std::filesystem;

using TextFile = luna::testing::FolderTest;

TEST_F(TextFile, ReadsBackWhatWasWritten) {
  const std::string text("a\nb\0c", 5);
  write_text(path("x"), "longer than what follows");
  write_text(path("x"), text);
  EXPECT_EQ(read_text(path("x")), text);
}

TEST_F(TextFile, LeavesNothingElseBehind) {
  write_text(path("x"), "text");
  EXPECT_EQ(
      std::distance(fs::directory_iterator(folder_), fs::directory_iterator()),
      1);
}

TEST_F(TextFile, SaysWhichFileAndWhy) {
  try {
    read_text(path("none"));
    FAIL() << "expected an error";
  } catch (const c10::Error& error) {
    const std::string message = error.what_without_backtrace();
    EXPECT_NE(message.find(path("none")), std::string::npos) << message;
    EXPECT_NE(message.find("No such file"), std::string::npos) << message;
  }
  EXPECT_THROW(read_text(folder_.string()), c10::Error);
  EXPECT_THROW(write_text(path("no/folder"), "text"), c10::Error);
}

TEST_F(TextFile, KnowsBeforehandWhatCannotBeWritten) {
  check_writable(path("new"));
  EXPECT_THROW(check_writable(path("no/folder")), c10::Error);
  EXPECT_THROW(check_writable(folder_.string()), c10::Error);
}

}  // namespace
}  // namespace luna::io
