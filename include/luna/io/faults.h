#pragma once

#include <cerrno>
#include <cstdint>
#include <string>

// Faults on purpose, for tests of everything that is saved. Each system call
// by which luna::io writes (open, write, sync, rename, exchange, mkdir,
// remove) passes one of these points first. The n-th call can be made to fail
// or to kill the process, so a test can stop a save at every point it has.
//
//   LUNA_FAULT=kill:17          SIGKILL at the 17th call of this process
//   LUNA_FAULT=kill:rename:2    SIGKILL at the 2nd rename
//   LUNA_FAULT=fail:write:1     the first write finds the disk full
//
// A call of `write` that is hit writes half of its bytes first: a torn file.

namespace luna::io {

struct Fault {
  enum class Action { kNone, kFail, kKill };
  Action action = Action::kNone;
  int64_t call = 1;      ///< which call is hit, from 1
  std::string point{};   ///< counts only calls of this name; empty: all
  int error = ENOSPC;    ///< what a failing call reports
  bool repeats = false;  ///< later calls fail too, as on a disk that is full
};

/// Reads the form of LUNA_FAULT.
Fault parse_fault(const std::string& text);

/// Replaces the fault (LUNA_FAULT's at the start) and counts from 0 again.
void set_fault(const Fault& fault);

/// Calls counted since the start or set_fault.
int64_t fault_calls();

/// A point of one's own in a save path. Returns 0 or the error to report;
/// does not return from a kill.
int fault_point(const char* name);

}  // namespace luna::io
