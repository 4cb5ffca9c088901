#include "out_folder.h"

#include <fmt/format.h>

#include <filesystem>

#include "command.h"

namespace luna::cli {

namespace fs = std::filesystem;

void prepare_out_folder(const std::string& out, const std::string& command,
                        const std::function<bool()>& is_ours) {
  if (fs::exists(out)) {
    if (!fs::is_directory(out)) {
      throw UsageError(
          fmt::format("--out: expected a folder, got the file {}", out));
    }
    if (fs::is_empty(out) || is_ours()) return;
    throw UsageError(fmt::format(
        "--out: expected a new folder or one of {}, got {}, which holds "
        "something else",
        command, out));
  }
  const fs::path path(out);
  const fs::path above =
      (path.has_filename() ? path : path.parent_path()).parent_path();
  if (above.empty()) return;
  std::error_code error;
  fs::create_directories(above, error);
  if (error) {
    throw std::runtime_error(
        fmt::format("cannot make {}: {}", above.string(), error.message()));
  }
}

}  // namespace luna::cli
