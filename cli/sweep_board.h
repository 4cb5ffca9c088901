#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sweep_jobs.h"

namespace luna::cli {

/// What of a sweep goes on, on stderr: a table that is redrawn in place on a
/// terminal, lines elsewhere.
class SweepBoard {
 public:
  SweepBoard();
  ~SweepBoard() { wipe(); }
  SweepBoard(const SweepBoard&) = delete;
  SweepBoard& operator=(const SweepBoard&) = delete;

  /// A line that stays; nothing for an empty one.
  void note(const std::string& text);

  /// Whether there is a terminal to draw on.
  bool shows() const { return terminal_; }
  /// A line, where there is no table to look at.
  void log(const std::string& text);
  /// `at_once`: how many go at a time.
  void draw(const std::vector<train::SweepRun>& runs,
            const std::vector<Job>& jobs, int64_t at_once);

 private:
  void wipe();

  bool terminal_;
  int64_t lines_ = 0;
};

}  // namespace luna::cli
