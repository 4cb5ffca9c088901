#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace luna::data {

/// The lines of a text without their ends ("\n" or "\r\n") and without a byte
/// order mark; views of `text`. What stands behind the last end is a line if
/// it is not empty.
std::vector<std::string_view> lines_of(std::string_view text);

/// Whether the file is a table with tabs between its columns: .tsv, .tsv.gz,
/// .tsv.xz.
bool is_tsv(const std::string& path);

/// Calls `visit` for every line of a file (plain, gz, xz), of a tsv for every
/// column of every line.
void each_text(const std::string& path,
               const std::function<void(std::string_view)>& visit);

}  // namespace luna::data
