#include "whole_lines.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace luna::cli {

WholeLines::WholeLines(const std::string& path)
    : path_(path.empty() ? "standard output" : path),
      descriptor_(path.empty()
                      ? STDOUT_FILENO
                      : open(path.c_str(),
                             O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) {
  TORCH_CHECK(descriptor_ >= 0, "cannot write ", path_, ": ",
              std::strerror(errno));
}

WholeLines::~WholeLines() {
  if (descriptor_ != STDOUT_FILENO) close(descriptor_);
}

void WholeLines::write(std::string line) {
  line += '\n';
  size_t done = 0;
  while (done < line.size()) {
    const ssize_t count =
        ::write(descriptor_, line.data() + done, line.size() - done);
    if (count < 0 && errno == EINTR) continue;
    TORCH_CHECK(count > 0, "cannot write ", path_, ": ", std::strerror(errno));
    done += static_cast<size_t>(count);
  }
}

}  // namespace luna::cli
