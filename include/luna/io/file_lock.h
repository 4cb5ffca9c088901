#pragma once

#include <string>

namespace luna::io {

/// Holds a lock on `path`, a file made for that purpose, for its lifetime. If
/// another process (or another FileLock) has it, throws with that process's
/// id. The system releases it when the process ends, however it ends.
class FileLock {
 public:
  explicit FileLock(const std::string& path);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int descriptor_;
};

}  // namespace luna::io
