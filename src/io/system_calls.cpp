#include "io/system_calls.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <stdio.h>  // renameat2
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "luna/io/faults.h"

namespace luna::io::system {
namespace {

constexpr const char* kCannotWrite = "cannot write";

/// The call's result, or -1 with errno set by a fault.
template <class Call>
int attempt(const char* point, const Call& call) {
  if (const int error = fault_point(point); error != 0) {
    errno = error;
    return -1;
  }
  int result;
  do {
    result = call();
  } while (result == -1 && errno == EINTR);
  return result;
}

}  // namespace

void fail(const char* what, const std::string& path, int error) {
  TORCH_CHECK(false, what, " ", path, ": ", std::strerror(error));
}

Descriptor::~Descriptor() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

int create(const std::string& file, const std::string& user_path) {
  const int descriptor = attempt("open", [&] {
    return ::open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  });
  if (descriptor < 0) fail(kCannotWrite, user_path, errno);
  // Without locks (some network folders) nothing is lost but the protection
  // from another process's remove_leftovers.
  ::flock(descriptor, LOCK_EX | LOCK_NB);
  return descriptor;
}

int open_existing(const std::string& file) {
  const int descriptor = attempt(
      "open", [&] { return ::open(file.c_str(), O_WRONLY | O_CLOEXEC); });
  if (descriptor < 0) fail(kCannotWrite, file, errno);
  return descriptor;
}

void write(int descriptor, const void* data, size_t bytes,
           const std::string& user_path) {
  const int error = fault_point_of_write(descriptor, data, bytes);
  if (error != 0) fail(kCannotWrite, user_path, error);
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    // The system takes at most 2 GiB at once.
    const ssize_t written =
        ::write(descriptor, next, std::min(bytes, size_t{1} << 30));
    if (written < 0) {
      if (errno == EINTR) continue;
      fail(kCannotWrite, user_path, errno);
    }
    next += written;
    bytes -= static_cast<size_t>(written);
  }
}

void sync(int descriptor, const std::string& user_path) {
  if (attempt("sync", [&] { return ::fsync(descriptor); }) != 0) {
    // Some file systems have nothing to sync in a folder.
    if (errno != EINVAL && errno != ENOTSUP) {
      fail(kCannotWrite, user_path, errno);
    }
  }
}

void sync_path(const std::string& path, const std::string& user_path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) fail(kCannotWrite, user_path, errno);
  sync(file.get(), user_path);
}

void rename(const std::string& from, const std::string& to,
            const std::string& user_path) {
  if (attempt("rename", [&] { return ::rename(from.c_str(), to.c_str()); }) !=
      0) {
    fail(kCannotWrite, user_path, errno);
  }
}

bool exchange(const std::string& a, const std::string& b,
              const std::string& user_path) {
  if (attempt("exchange", [&] {
        return ::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(),
                           RENAME_EXCHANGE);
      }) == 0) {
    return true;
  }
  if (errno == EINVAL || errno == ENOSYS || errno == ENOTSUP) return false;
  fail(kCannotWrite, user_path, errno);
}

int make_folder(const std::string& path, const std::string& user_path) {
  if (attempt("mkdir", [&] { return ::mkdir(path.c_str(), 0777); }) != 0) {
    fail(kCannotWrite, user_path, errno);
  }
  const int descriptor =
      ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) fail(kCannotWrite, user_path, errno);
  ::flock(descriptor, LOCK_EX | LOCK_NB);
  return descriptor;
}

void remove_all(const std::string& path) {
  if (fault_point("remove") != 0) return;
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
}

bool unlocked(const std::string& path) {
  const Descriptor file(
      ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  return file.get() >= 0 && ::flock(file.get(), LOCK_EX | LOCK_NB) == 0;
}

}  // namespace luna::io::system
