#pragma once

#include <string>

namespace luna::io {

/// Holds a lock on `path`, a file made for that purpose, for its lifetime. If
/// another process (or another FileLock) has it, throws with that process's
/// id. The file goes when the lock does; after a process that was killed it
/// stays, but the system has released the lock.
class FileLock {
 public:
  explicit FileLock(const std::string& path);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  std::string path_;
  int descriptor_ = -1;
};

}  // namespace luna::io
