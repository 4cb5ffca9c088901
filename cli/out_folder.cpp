#include "out_folder.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "command.h"
#include "luna/io/atomic.h"

namespace luna::cli {

namespace fs = std::filesystem;

namespace {

/// "a.txt, b.txt, c.txt and 5 more".
std::string some_names(const std::string& folder) {
  constexpr size_t kShown = 3;
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  const size_t more = names.size() - std::min(names.size(), kShown);
  names.resize(names.size() - more);
  const std::string shown = fmt::format("{}", fmt::join(names, ", "));
  return more == 0 ? shown : fmt::format("{} and {} more", shown, more);
}

}  // namespace

void prepare_out_folder(const std::string& out, const std::string& command,
                        const std::function<bool()>& is_ours) {
  if (fs::exists(out)) {
    if (!fs::is_directory(out)) {
      throw UsageError(
          fmt::format("--out: expected a folder, got the file {}", out));
    }
    if (fs::is_empty(out) || is_ours()) return;
    throw UsageError(fmt::format(
        "--out: expected a new folder or one of {}, got {}, which holds {}",
        command, out, some_names(out)));
  }
  io::make_folders_above(out);
}

}  // namespace luna::cli
