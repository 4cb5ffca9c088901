#include "luna/io/memory_map.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <utility>

#include "io/system_calls.h"

namespace luna::io {

MemoryMap::MemoryMap(std::string path, std::byte* data, size_t size)
    : path_(std::move(path)), data_(data), size_(size) {}

MemoryMap::~MemoryMap() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

std::shared_ptr<MemoryMap> MemoryMap::open(const std::string& path) {
  // Not blocking, so that a pipe is refused and not waited for.
  const system::Descriptor file(
      ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (file.get() < 0) system::fail("cannot read", path, errno);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) {
    system::fail("cannot read", path, errno);
  }
  if (S_ISDIR(status.st_mode)) system::fail("cannot read", path, EISDIR);
  TORCH_CHECK(S_ISREG(status.st_mode), "cannot read ", path,
              ": expected a regular file, got a device or pipe");
  const auto size = static_cast<size_t>(status.st_size);
  void* data = nullptr;
  if (size > 0) {
    data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_NORESERVE, file.get(), 0);
    if (data == MAP_FAILED) system::fail("cannot read", path, errno);
  }
  return std::shared_ptr<MemoryMap>(
      new MemoryMap(path, static_cast<std::byte*>(data), size));
}

}  // namespace luna::io
