#include "luna/train/gpu_sharing.h"

#include <stdlib.h>

#include <optional>

#include "luna/io/text_file.h"
#include "support/errors.h"
#include "support/temporary_folder.h"

namespace luna::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPipes = "CUDA_MPS_PIPE_DIRECTORY";

/// A control program stands first on the PATH that writes down how it was
/// called and what it was told.
class GpuSharingTest : public testing::FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    path_before_ = getenv("PATH");
    setenv("TMPDIR", folder_.c_str(), 1);
    if (const char* pipes = getenv(kPipes)) pipes_before_ = pipes;
    unsetenv(kPipes);
  }
  void TearDown() override {
    setenv("PATH", path_before_.c_str(), 1);
    unsetenv("TMPDIR");
    unsetenv(kPipes);
    if (pipes_before_) setenv(kPipes, pipes_before_->c_str(), 1);
    FolderTest::TearDown();
  }

  void install(const std::string& commands) {
    const std::string program = path("nvidia-cuda-mps-control");
    io::write_text(program, "#!/bin/sh\n" + commands);
    fs::permissions(program, fs::perms::owner_all);
    setenv("PATH", (folder_.string() + ":" + path_before_).c_str(), 1);
  }
  std::string calls() const { return io::read_text(path("calls")); }

  std::string path_before_;
  std::optional<std::string> pipes_before_;
};

TEST_F(GpuSharingTest, StartsAServiceForItsChildrenAndEndsIt) {
  install(
      "echo \"$* at $CUDA_MPS_PIPE_DIRECTORY$CUDA_VISIBLE_DEVICES told "
      "$(cat)\" >> " +
      path("calls") + "\n");
  setenv("CUDA_VISIBLE_DEVICES", "1", 1);  // the runs' own, not the service's
  std::string folder;
  {
    const GpuSharing sharing;
    folder = sharing.folder();
    EXPECT_TRUE(fs::is_directory(folder));
    EXPECT_EQ(calls(), "-d at " + folder + " told \n");
    ASSERT_NE(getenv(kPipes), nullptr);
    EXPECT_EQ(getenv(kPipes), folder);
  }
  EXPECT_EQ(calls(),
            "-d at " + folder + " told \n at " + folder + " told quit\n");
  EXPECT_EQ(getenv(kPipes), nullptr);
  EXPECT_STREQ(getenv("CUDA_VISIBLE_DEVICES"), "1");
  unsetenv("CUDA_VISIBLE_DEVICES");
  EXPECT_FALSE(fs::exists(folder));
}

TEST_F(GpuSharingTest, LeavesAServiceAloneThatIsThere) {
  install("echo called >> " + path("calls") + "\n");
  setenv(kPipes, "/tmp/mine", 1);
  { EXPECT_EQ(GpuSharing().folder(), "/tmp/mine"); }
  EXPECT_FALSE(fs::exists(path("calls")));
  EXPECT_STREQ(getenv(kPipes), "/tmp/mine");
}

TEST_F(GpuSharingTest, SaysWhyThereIsNone) {
  setenv("PATH", folder_.c_str(), 1);
  testing::expect_error<c10::Error>(
      [] { GpuSharing(); },
      {"nvidia-cuda-mps-control", "driver", "No such file"});
  EXPECT_EQ(getenv(kPipes), nullptr);
  setenv("PATH", path_before_.c_str(), 1);
  install("echo no such device; exit 3\n");
  testing::expect_error<c10::Error>([] { GpuSharing(); },
                                    {"exit 3", "no such device"});
  EXPECT_EQ(getenv(kPipes), nullptr);
  for (const auto& entry : fs::directory_iterator(folder_)) {
    EXPECT_FALSE(entry.path().filename().string().starts_with("luna-mps-"))
        << entry.path() << " was left behind";
  }
}

}  // namespace
}  // namespace luna::train
