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
// Where it is set, the service counts devices anew and its clients, who have it
// too, count among those.
constexpr const char* kDevices = "CUDA_VISIBLE_DEVICES";

std::vector<std::string> environment(const std::string& folder) {
  std::vector<std::string> all = {fmt::format("{}={}", kPipes, folder),
                                  fmt::format("{}={}", kLogs, folder)};
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::string name = text.substr(0, text.find('='));
    if (name != kPipes && name != kLogs && name != kDevices) {
      all.push_back(text);
    }
  }
  return all;
}

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> all;
  for (std::string& word : words) all.push_back(word.data());
  all.push_back(nullptr);
  return all;
}

/// Runs the control program of the service at `folder` with what the file
/// `input` holds: its exit status, or -1 and an errno in `error`. What it
/// prints goes to a file, and it has a session of its own: the service that it
/// leaves behind must hold no terminal and no pipe.
int control(const std::string& folder, std::vector<std::string> options,
            const std::string& input, const std::string& output, int& error) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, input.c_str(),
                                   O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, output.c_str(),
                                   O_WRONLY | O_CREAT | O_APPEND, 0644);
  posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
  options.insert(options.begin(), kControl);
  std::vector<std::string> variables = environment(folder);
  pid_t process = 0;
  error = posix_spawnp(&process, kControl, &actions, &attributes,
                       pointers(options).data(), pointers(variables).data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return -1;
  int status = 0;
  while (waitpid(process, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void remove(const std::string& folder) {
  std::error_code ignored;
  fs::remove_all(folder, ignored);
}

std::string text_or_nothing(const std::string& path) {
  try {
    return io::read_text(path);
  } catch (const std::exception&) {
    return "";
  }
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
  io::write_text(folder_ + "/quit", "quit\n");  // what the destructor says
  int error = 0;
  const std::string said = folder_ + "/start.log";
  const int status = control(folder_, {"-d"}, "/dev/null", said, error);
  started_ = status == 0;
  if (started_) {
    setenv(kPipes, folder_.c_str(), 1);
    return;
  }
  const std::string why =
      status < 0 ? std::strerror(error)
                 : fmt::format("exit {}: {}", status, text_or_nothing(said));
  remove(folder_);
  TORCH_CHECK(false, "GPU sharing: expected NVIDIA's Multi-Process Service (",
              kControl, ", which comes with the driver) to start, got ", why);
}

GpuSharing::~GpuSharing() {
  if (!started_) return;
  unsetenv(kPipes);
  int error = 0;
  control(folder_, {}, folder_ + "/quit", folder_ + "/quit.log", error);
  remove(folder_);
}

}  // namespace luna::train
