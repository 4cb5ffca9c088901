#include "train/metrics_log.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "luna/io/faults.h"

namespace luna::train {

MetricsLog::MetricsLog(const std::string& path, int64_t bytes)
    : path_(path), bytes_(bytes) {
  descriptor_ = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  TORCH_CHECK(descriptor_ >= 0, "cannot write ", path, ": ",
              std::strerror(errno));
  struct stat status {};
  const bool fits = fstat(descriptor_, &status) == 0 && bytes <= status.st_size;
  if (!fits || ftruncate(descriptor_, bytes) != 0 ||
      lseek(descriptor_, bytes, SEEK_SET) < 0) {
    close(descriptor_);
    TORCH_CHECK(fits, path, ": expected at least the ", bytes,
                " bytes that the checkpoint knows of, got ", status.st_size);
    TORCH_CHECK(false, "cannot write ", path, ": ", std::strerror(errno));
  }
}

MetricsLog::~MetricsLog() { close(descriptor_); }

void MetricsLog::write(const nlohmann::ordered_json& line) {
  const std::string text = line.dump() + "\n";
  size_t done = 0;
  while (done < text.size()) {
    const int fault = io::fault_point("metrics");
    if (fault != 0) errno = fault;
    const ssize_t wrote = fault != 0 ? -1
                                     : ::write(descriptor_, text.data() + done,
                                               text.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    TORCH_CHECK(wrote > 0, "cannot write ", path_, ": ", std::strerror(errno));
    done += wrote;
  }
  bytes_ += static_cast<int64_t>(text.size());
}

void MetricsLog::sync() {
  const int fault = io::fault_point("metrics");
  if (fault != 0) errno = fault;
  TORCH_CHECK(fault == 0 && fdatasync(descriptor_) == 0, "cannot write ", path_,
              ": ", std::strerror(errno));
}

}  // namespace luna::train
