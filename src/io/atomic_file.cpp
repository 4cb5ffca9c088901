#include <cstring>
#include <filesystem>
#include <vector>

#include "io/atomic_names.h"
#include "io/system_calls.h"
#include "luna/io/atomic.h"

namespace luna::io {
namespace {

namespace fs = std::filesystem;

class DescriptorWriter : public FileWriter {
 public:
  DescriptorWriter(int descriptor, const std::string& user_path)
      : descriptor_(descriptor), user_path_(user_path) {
    buffer_.reserve(kBuffer);
  }

  void write(const void* data, size_t bytes) override {
    if (buffer_.size() + bytes > kBuffer) flush();
    if (bytes >= kBuffer) {
      system::write(descriptor_, data, bytes, user_path_);
    } else {
      const char* first = static_cast<const char*>(data);
      buffer_.insert(buffer_.end(), first, first + bytes);
    }
  }

  void flush() {
    if (buffer_.empty()) return;
    system::write(descriptor_, buffer_.data(), buffer_.size(), user_path_);
    buffer_.clear();
  }

 private:
  static constexpr size_t kBuffer = size_t{1} << 16;
  int descriptor_;
  const std::string& user_path_;
  std::vector<char> buffer_;
};

void write_all(int descriptor, const std::string& path,
               const WriteFunction& write) {
  DescriptorWriter writer(descriptor, path);
  write(writer);
  writer.flush();
}

/// Removes the file unless it was put in place.
struct RemoveUnlessDone {
  ~RemoveUnlessDone() {
    if (!done) system::remove_all(path);
  }
  const std::string& path;
  bool done = false;
};

}  // namespace

void write_file_atomically(const std::string& path,
                           const WriteFunction& write) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::is_directory(status)) system::fail("cannot write", path, EISDIR);
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    const system::Descriptor device(system::open_existing(path));
    write_all(device.get(), path, write);
    return;
  }

  const std::string temporary = part_name(path);
  const system::Descriptor file(system::create(temporary, path));
  RemoveUnlessDone cleanup{.path = temporary};
  write_all(file.get(), path, write);
  system::sync(file.get(), path);
  system::rename(temporary, path, path);
  cleanup.done = true;
  system::sync_path(parent_of(path), path);
}

}  // namespace luna::io
