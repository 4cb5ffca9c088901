#include "io/atomic_names.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "luna/io/atomic.h"

namespace luna::io {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMark = ".luna-";

std::string beside(const std::string& path, const char* kind) {
  static std::atomic<int64_t> count = 0;
  const fs::path target(path);
  // A process of the same id may have died here before, so look.
  for (;;) {
    const fs::path name =
        target.parent_path() / fmt::format(".{}{}{}-{}-{}",
                                           target.filename().string(), kMark,
                                           kind, getpid(), count++);
    std::error_code error;
    if (!fs::exists(fs::symlink_status(name, error))) return name.string();
  }
}

}  // namespace

std::string part_name(const std::string& path) { return beside(path, "part"); }
std::string aside_name(const std::string& path) { return beside(path, "old"); }

std::optional<LeftoverName> parse_leftover(const std::string& name) {
  const size_t mark = name.rfind(kMark);
  if (!name.starts_with('.') || mark == std::string::npos || mark < 2) {
    return {};
  }
  const std::string_view tail =
      std::string_view(name).substr(mark + std::strlen(kMark));
  const bool part = tail.starts_with("part-");
  if (!part && !tail.starts_with("old-")) return {};
  const std::string_view numbers = tail.substr(tail.find('-') + 1);
  const size_t dash = numbers.find('-');
  const auto digits = [](std::string_view text) {
    return !text.empty() &&
           text.find_first_not_of("0123456789") == std::string_view::npos;
  };
  if (dash == std::string_view::npos || !digits(numbers.substr(0, dash)) ||
      !digits(numbers.substr(dash + 1))) {
    return {};
  }
  return LeftoverName{.target = name.substr(1, mark - 1), .moved_aside = !part};
}

bool is_leftover(const std::string& name) {
  return parse_leftover(name).has_value();
}

std::string parent_of(const std::string& path) {
  const fs::path parent = fs::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

}  // namespace luna::io
