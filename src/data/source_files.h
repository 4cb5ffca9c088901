#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace luna::data {

/// A form in which a task's files may lie in the folder that the user gave.
struct SourceForm {
  std::string name{};                  ///< in words
  std::string marker{};                ///< the file or folder that shows it
  std::vector<std::string> folders{};  ///< where under the user's; "": there
};

struct FoundSource {
  size_t form = 0;       ///< index among the forms
  std::string folder{};  ///< that holds the marker
};

/// The first form that is there. If none is, an error that says what was
/// looked for, where, and `how` to get it.
FoundSource find_source(const std::string& task, const std::string& folder,
                        const std::vector<SourceForm>& forms,
                        const std::string& how);

/// A file's bytes; unpacked if its name ends in .gz or .xz.
std::string read_source(const std::string& path);

/// A line, cut at the first `columns` - 1 tabs.
struct TsvLine {
  std::string where{};  ///< "FILE: line 7"
  std::vector<std::string_view> columns{};
};

/// Calls `visit` for each line; one with fewer columns is an error, as is a
/// file without lines. A tab beyond the last column belongs to it; "\r\n" ends
/// a line, too.
void read_tsv(const std::string& path, std::string_view text, size_t columns,
              const std::function<void(const TsvLine&)>& visit);

/// "0", "1", "2.0": a whole number from 0 to classes - 1.
int64_t parse_label(const std::string& where, std::string_view text,
                    int64_t classes);

}  // namespace luna::data
