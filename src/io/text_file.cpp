#include "luna/io/text_file.h"

#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "io/system_calls.h"
#include "luna/io/atomic.h"

namespace luna::io {
namespace {

namespace fs = std::filesystem;

/// Devices and pipes (/dev/stdout) are written to, not replaced.
bool replaceable(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  return !fs::exists(status) || fs::is_regular_file(status);
}

using system::fail;

}  // namespace

std::string read_text(const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) fail("cannot read", path, EISDIR);
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) fail("cannot read", path, errno);
  std::ostringstream text;
  text << file.rdbuf();
  if (file.bad()) fail("cannot read", path, errno);
  return text.str();
}

void write_text(const std::string& path, const std::string& text) {
  write_file_atomically(path, [&](FileWriter& file) { file.write(text); });
}

void check_writable(const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) fail("cannot write", path, EISDIR);
  const fs::path folder = fs::path(path).parent_path();
  const std::string where = folder.empty() ? "." : folder.string();
  if (replaceable(path) ? access(where.c_str(), W_OK | X_OK) != 0
                        : access(path.c_str(), W_OK) != 0) {
    fail("cannot write", path, errno);
  }
}

}  // namespace luna::io
