#include "sweep_jobs.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <stdexcept>

#include "interrupt.h"
#include "luna/io/text_file.h"
#include "luna/report/format.h"
#include "run_options.h"

namespace luna::cli {
namespace {

namespace fs = std::filesystem;

/// The last line of a job's log, which says what went wrong.
std::string last_line(const std::string& path) {
  std::string text = io::read_text(path);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  const size_t from = text.find_last_of('\n');
  return from == std::string::npos ? text : text.substr(from + 1);
}

}  // namespace

std::string Job::log() const {
  return fs::path(run.folder.path()).parent_path() / "logs" /
         (run.name + ".log");
}

void start(Job& job, const std::vector<std::string>& words) {
  fs::create_directories(fs::path(job.log()).parent_path());
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, job.log().c_str(),
                                   O_WRONLY | O_CREAT | O_APPEND, 0644);
  posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
  // A group of its own: the terminal's Ctrl-C reaches the sweep alone, which
  // passes it on once.
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  std::vector<char*> argv;
  for (const std::string& word : words) {
    argv.push_back(const_cast<char*>(word.c_str()));
  }
  argv.push_back(nullptr);
  pid_t process = 0;
  const int error = posix_spawn(&process, "/proc/self/exe", &actions,
                                &attributes, argv.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    throw std::runtime_error(fmt::format("{}: could not be started: {}",
                                         job.run.name, std::strerror(error)));
  }
  job.process = process;
}

bool ended(Job& job) {
  if (waitpid(job.process, nullptr, WNOHANG) == 0) return false;
  job.process = 0;
  job.state = train::read_sweep_state(job.run);
  job.failed = job.has_to_run() && !interrupted();
  return true;
}

std::string outcome(const Job& job) {
  if (job.failed) {
    return fmt::format("{}: failed: {}\n  log: {}", job.run.name,
                       last_line(job.log()), job.log());
  }
  if (job.has_to_run()) return "";
  const auto& accuracy = job.state.accuracy;
  return fmt::format(
      "{}: {} after {}", job.run.name,
      accuracy ? "test accuracy " + per_cent(*accuracy) : "finished",
      report::duration(job.state.seconds));
}

void interrupt_jobs(const std::vector<Job>& jobs) {
  for (const Job& job : jobs) {
    if (job.process != 0) kill(job.process, SIGTERM);
  }
}

void end_jobs(std::vector<Job>& jobs) {
  interrupt_jobs(jobs);
  for (Job& job : jobs) {
    if (job.process != 0) waitpid(job.process, nullptr, 0);
    job.process = 0;
  }
}

}  // namespace luna::cli
