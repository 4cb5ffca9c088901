#include "luna/io/file_lock.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "io/system_calls.h"

namespace luna::io {

FileLock::FileLock(const std::string& path)
    : descriptor_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)) {
  if (descriptor_ < 0) system::fail("cannot lock", path, errno);
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    std::array<char, 32> text{};
    const ssize_t bytes = ::read(descriptor_, text.data(), text.size());
    ::close(descriptor_);
    if (error != EWOULDBLOCK) system::fail("cannot lock", path, error);
    std::string holder(text.data(), bytes > 0 ? static_cast<size_t>(bytes) : 0);
    holder.resize(std::min(holder.size(), holder.find('\n')));
    TORCH_CHECK(false, "cannot lock ", path, ": process ",
                holder.empty() ? "(unknown)" : holder, " is using it");
  }
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

// The file stays: if it were removed, another process could lock a file of
// that name while a third one holds the removed one.
FileLock::~FileLock() { ::close(descriptor_); }

}  // namespace luna::io
