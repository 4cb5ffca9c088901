#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace luna::io {

/// A file's bytes as memory, read from disk when they are touched. The mapping
/// is private: who writes to it changes his own copy of that page, never the
/// file. Do not shorten a file in place while it is mapped (replace it, as
/// write_file_atomically does): touching bytes that are gone ends the process.
class MemoryMap {
 public:
  /// Throws with the path and the reason; only regular files can be mapped.
  static std::shared_ptr<MemoryMap> open(const std::string& path);
  ~MemoryMap();
  MemoryMap(const MemoryMap&) = delete;
  MemoryMap& operator=(const MemoryMap&) = delete;

  /// The first byte; null if the file is empty.
  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  const std::string& path() const { return path_; }

 private:
  MemoryMap(std::string path, std::byte* data, size_t size);

  std::string path_;
  std::byte* data_;
  size_t size_;
};

}  // namespace luna::io
