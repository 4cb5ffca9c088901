#include "data/text_lines.h"

#include <algorithm>

#include "data/source_files.h"

namespace luna::data {

std::vector<std::string_view> lines_of(std::string_view text) {
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    lines.push_back(line);
  }
  return lines;
}

bool is_tsv(const std::string& path) {
  std::string_view name = path;
  for (const std::string_view packed : {".gz", ".xz"}) {
    if (name.ends_with(packed)) name.remove_suffix(packed.size());
  }
  return name.ends_with(".tsv");
}

void each_text(const std::string& path,
               const std::function<void(std::string_view)>& visit) {
  const std::string bytes = read_source(path);
  const bool tsv = is_tsv(path);
  for (std::string_view line : lines_of(bytes)) {
    while (tsv) {
      const size_t tab = line.find('\t');
      if (tab == std::string_view::npos) break;
      visit(line.substr(0, tab));
      line.remove_prefix(tab + 1);
    }
    visit(line);
  }
}

}  // namespace luna::data
