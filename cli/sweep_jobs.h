// The runs of a sweep, each a process of its own.
#pragma once

#include <luna/train/sweep.h>
#include <sys/types.h>

#include <string>
#include <vector>

namespace luna::cli {

/// One run of the sweep and, while it goes, its process.
struct Job {
  const train::SweepRun& run;
  train::SweepState state{};
  std::string data{};  ///< its folder
  pid_t process = 0;
  bool failed = false;

  bool has_to_run() const {
    return !failed && state.phase != train::SweepState::Phase::kFinished;
  }
  std::string log() const;
};

/// Starts this program again by these words, its output to the job's log.
void start(Job& job, const std::vector<std::string>& words);

/// Whether the job's process has ended; if so, reads what the run came to. It
/// failed if it ended early and nobody interrupted it.
bool ended(Job& job);

/// "image-softmax-s1: test accuracy 43.5 % after 2 min", or how it failed;
/// empty where it was interrupted.
std::string outcome(const Job& job);

/// Asks all that run to save and end.
void interrupt_jobs(const std::vector<Job>& jobs);
/// The same, and waits until they have.
void end_jobs(std::vector<Job>& jobs);

}  // namespace luna::cli
