#include "luna/train/gpu_sharing.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <vector>

#include "luna/io/text_file.h"

namespace luna::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kControl = "nvidia-cuda-mps-control";
constexpr const char* kPipes = "CUDA_MPS_PIPE_DIRECTORY";
constexpr const char* kLogs = "CUDA_MPS_LOG_DIRECTORY";

/// Runs the control program with what `input` holds; its exit status, or -1
/// and errno in `error`. What it prints goes to a file: the service that it
/// leaves behind must not hold a terminal or a pipe open.
int control(const std::vector<const char*>& options, const std::string& input,
            const std::string& output, int& error) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, input.c_str(),
                                   O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, output.c_str(),
                                   O_WRONLY | O_CREAT | O_APPEND, 0644);
  posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
  std::vector<char*> words = {const_cast<char*>(kControl)};
  for (const char* option : options) words.push_back(const_cast<char*>(option));
  words.push_back(nullptr);
  pid_t process = 0;
  error = posix_spawnp(&process, kControl, &actions, nullptr, words.data(),
                       environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return -1;
  int status = 0;
  while (waitpid(process, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

GpuSharing::GpuSharing() {
  if (const char* there = getenv(kPipes); there != nullptr && *there != 0) {
    folder_ = there;
    return;
  }
  // Short: names of sockets in it have little room.
  std::string name = fs::temp_directory_path() / "luna-mps-XXXXXX";
  TORCH_CHECK(mkdtemp(name.data()) != nullptr, name,
              ": could not be made: ", std::strerror(errno));
  folder_ = name;
  setenv(kPipes, folder_.c_str(), 1);
  setenv(kLogs, folder_.c_str(), 1);
  int error = 0;
  const std::string said = folder_ + "/start.log";
  const int status = control({"-d"}, "/dev/null", said, error);
  started_ = status == 0;
  if (started_) return;
  const std::string why =
      status < 0 ? std::strerror(error)
                 : fmt::format("exit {}: {}", status, io::read_text(said));
  forget();
  TORCH_CHECK(false, "GPU sharing: expected NVIDIA's Multi-Process Service (",
              kControl, ", which comes with the driver) to start, got ", why);
}

GpuSharing::~GpuSharing() {
  if (!started_) return;
  const std::string quit = folder_ + "/quit";
  const int file = open(quit.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (file >= 0) {
    const bool written = write(file, "quit\n", 5) == 5;
    close(file);
    int error = 0;
    if (written) control({}, quit, folder_ + "/quit.log", error);
  }
  forget();
}

void GpuSharing::forget() {
  unsetenv(kPipes);
  unsetenv(kLogs);
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

}  // namespace luna::train
