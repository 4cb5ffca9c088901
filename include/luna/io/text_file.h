#pragma once

#include <string>

namespace luna::io {

/// The whole file. Throws with the path and the system's reason.
std::string read_text(const std::string& path);

/// Makes or replaces the file as write_file_atomically does: a reader sees the
/// old file or the new one, never half of it.
void write_text(const std::string& path, const std::string& text);

/// Throws now if write_text(path) could not work later.
void check_writable(const std::string& path);

}  // namespace luna::io
