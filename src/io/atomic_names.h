// Names of files and folders in the making: .NAME.luna-part-PID-COUNT, and of
// folders moved aside while they are replaced: .NAME.luna-old-PID-COUNT.
#pragma once

#include <optional>
#include <string>

namespace luna::io {

struct LeftoverName {
  std::string target{};  ///< the name it was to have or had
  bool moved_aside = false;
};

/// A path beside `path` that nothing has.
std::string part_name(const std::string& path);
std::string aside_name(const std::string& path);
std::optional<LeftoverName> parse_leftover(const std::string& name);

/// The folder of `path`, "." if it names none.
std::string parent_of(const std::string& path);

}  // namespace luna::io
