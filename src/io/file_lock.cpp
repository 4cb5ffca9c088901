#include "luna/io/file_lock.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "io/system_calls.h"

namespace luna::io {
namespace {

std::string holder_of(int descriptor) {
  std::array<char, 32> text{};
  const ssize_t bytes = ::read(descriptor, text.data(), text.size());
  std::string holder(text.data(), bytes > 0 ? static_cast<size_t>(bytes) : 0);
  holder.resize(std::min(holder.size(), holder.find('\n')));
  return holder.empty() ? "(unknown)" : holder;
}

/// Whether `path` still names the open file.
bool is_named(int descriptor, const std::string& path) {
  struct stat open {
  }, named{};
  return ::fstat(descriptor, &open) == 0 && ::stat(path.c_str(), &named) == 0 &&
         open.st_dev == named.st_dev && open.st_ino == named.st_ino;
}

}  // namespace

FileLock::FileLock(const std::string& path) : path_(path) {
  // A holder removes the file before it lets go. Who had opened it by then
  // gets a lock on a file without a name, which keeps nobody out: try again.
  do {
    if (descriptor_ >= 0) ::close(descriptor_);
    descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (descriptor_ < 0) system::fail("cannot lock", path, errno);
    if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
      const int error = errno;
      const std::string holder = holder_of(descriptor_);
      ::close(descriptor_);
      if (error != EWOULDBLOCK) system::fail("cannot lock", path, error);
      TORCH_CHECK(false, "cannot lock ", path, ": process ", holder,
                  " is using it");
    }
  } while (!is_named(descriptor_, path));
  // The id is for the message above; the lock itself does not need it.
  const std::string id = std::to_string(::getpid()) + "\n";
  if (::ftruncate(descriptor_, 0) != 0 ||
      ::write(descriptor_, id.data(), id.size()) !=
          static_cast<ssize_t>(id.size())) {
    const int error = errno;
    ::close(descriptor_);
    system::fail("cannot lock", path, error);
  }
}

FileLock::~FileLock() {
  // If somebody else removed or replaced the file, the name is not ours.
  if (is_named(descriptor_, path_)) ::unlink(path_.c_str());
  ::close(descriptor_);
}

}  // namespace luna::io
