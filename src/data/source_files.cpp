#include "data/source_files.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <luna/io/text_file.h>

#include <algorithm>
#include <filesystem>

#include "data/gz.h"
#include "data/xz.h"

namespace luna::data {

namespace fs = std::filesystem;

FoundSource find_source(const std::string& task, const std::string& folder,
                        const std::vector<SourceForm>& forms,
                        const std::string& how) {
  TORCH_CHECK_VALUE(!folder.empty(), task,
                    ": expected a folder to read (--data DIR), got none; ",
                    how);
  std::error_code ignored;
  TORCH_CHECK_VALUE(fs::is_directory(folder, ignored), task,
                    ": --data: expected a folder, got ", folder,
                    ", which is none; ", how);
  std::vector<std::string> looked;
  for (size_t form = 0; form < forms.size(); ++form) {
    std::vector<std::string> markers;
    for (const std::string& sub : forms[form].folders) {
      const fs::path place = fs::path(folder) / sub;
      if (fs::exists(place / forms[form].marker, ignored)) {
        return {form, place.string()};
      }
      markers.push_back((fs::path(sub) / forms[form].marker).string());
    }
    looked.push_back(
        fmt::format("{} ({})", fmt::join(markers, " or "), forms[form].name));
  }
  TORCH_CHECK_VALUE(false, task, ": expected its files in ", folder,
                    ", got none: looked for ",
                    fmt::format("{}", fmt::join(looked, ", ")), "; ", how);
}

std::string read_source(const std::string& path) {
  std::string bytes = io::read_text(path);
  TORCH_CHECK_VALUE(!bytes.empty(), path, ": expected data, got an empty file");
  if (path.ends_with(".gz")) return decode_gz(path, bytes);
  if (!path.ends_with(".xz")) return bytes;
  const std::vector<uint8_t> unpacked = decode_xz(
      path, {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
  return {unpacked.begin(), unpacked.end()};
}

void read_tsv(const std::string& path, std::string_view text, size_t columns,
              const std::function<void(const TsvLine&)>& visit) {
  int64_t number = 0;
  TsvLine line;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view rest = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (rest.ends_with('\r')) rest.remove_suffix(1);
    line.where = fmt::format("{}: line {}", path, ++number);
    line.columns.clear();
    while (line.columns.size() + 1 < columns) {
      const size_t tab = rest.find('\t');
      if (tab == std::string_view::npos) break;
      line.columns.push_back(rest.substr(0, tab));
      rest.remove_prefix(tab + 1);
    }
    line.columns.push_back(rest);
    TORCH_CHECK_VALUE(line.columns.size() == columns, line.where, ": expected ",
                      columns, " columns with tabs between them, got ",
                      line.columns.size());
    visit(line);
  }
  TORCH_CHECK_VALUE(number > 0, path, ": expected lines, got an empty file");
}

int64_t parse_label(const std::string& where, std::string_view text,
                    int64_t classes) {
  std::string_view digits = text;
  if (digits.ends_with(".0")) digits.remove_suffix(2);
  int64_t label = -1;
  if (!digits.empty() && digits.size() <= 6 &&
      std::all_of(digits.begin(), digits.end(),
                  [](char c) { return c >= '0' && c <= '9'; })) {
    label = std::stoll(std::string(digits));
  }
  TORCH_CHECK_VALUE(label >= 0 && label < classes, where,
                    ": label: expected 0 to ", classes - 1, ", got \"",
                    text.substr(0, 40), "\"");
  return label;
}

}  // namespace luna::data
