#include "luna/io/text_file.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace luna::io {
namespace {

namespace fs = std::filesystem;

/// Devices and pipes (/dev/stdout) are written to, not replaced.
bool replaceable(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  return !fs::exists(status) || fs::is_regular_file(status);
}

std::string temporary_name(const std::string& path) {
  return path + ".part" + std::to_string(getpid());
}

[[noreturn]] void fail(const std::string& what, const std::string& path,
                       int reason) {
  TORCH_CHECK(false, what, " ", path, ": ", std::strerror(reason));
}

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
  const bool replace = replaceable(path);
  const std::string target = replace ? temporary_name(path) : path;
  errno = 0;
  std::ofstream file(target, std::ios::binary);
  file << text;
  file.close();
  if (!file) {
    const int reason = errno;
    if (replace) std::remove(target.c_str());
    fail("cannot write", path, reason);
  }
  if (replace && std::rename(target.c_str(), path.c_str()) != 0) {
    const int reason = errno;
    std::remove(target.c_str());
    fail("cannot write", path, reason);
  }
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
