#include "luna/report/table.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>

#include "luna/report/format.h"

namespace luna::report {

Table::Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

void Table::add_row(std::vector<std::string> cells) {
  TORCH_CHECK(cells.size() == columns_.size(), "Table::add_row: expected ",
              columns_.size(), " cells, got ", cells.size());
  rows_.push_back(std::move(cells));
}

void Table::start_group() {
  if (!rows_.empty()) group_starts_.push_back(rows_.size());
}

std::string Table::text() const {
  std::vector<std::size_t> widths;
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    std::size_t width = display_width(columns_[c].title);
    for (const auto& row : rows_) {
      width = std::max(width, display_width(row[c]));
    }
    widths.push_back(width);
  }
  std::string out;
  const auto add_line = [&](auto cell_of) {
    std::string line;
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      const std::string& cell = cell_of(c);
      const std::string pad(widths[c] - display_width(cell), ' ');
      line += columns_[c].right ? pad + cell : cell + pad;
      line += "  ";
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + '\n';
  };
  const auto title = [&](std::size_t c) -> const std::string& {
    return columns_[c].title;
  };
  add_line(title);
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    if (std::find(group_starts_.begin(), group_starts_.end(), r) !=
        group_starts_.end()) {
      out += '\n';
    }
    const auto cell = [&](std::size_t c) -> const std::string& {
      return rows_[r][c];
    };
    add_line(cell);
  }
  return out;
}

std::string Table::html() const {
  const auto css = [&](std::size_t c) {
    return columns_[c].right ? " class=\"number\"" : "";
  };
  std::string out = "<div class=\"scroll\" tabindex=\"0\"><table><thead><tr>";
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    out += fmt::format("<th scope=\"col\"{}>{}</th>", css(c),
                       escape(columns_[c].title));
  }
  out += "</tr></thead>\n<tbody>\n";
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    const bool starts = std::find(group_starts_.begin(), group_starts_.end(),
                                  r) != group_starts_.end();
    out += starts ? "<tr class=\"group\">" : "<tr>";
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      out += fmt::format("<td{}>{}</td>", css(c), escape(rows_[r][c]));
    }
    out += "</tr>\n";
  }
  return out + "</tbody></table></div>\n";
}

std::string Table::markdown() const {
  std::string out = "|", rule = "|";
  for (const Column& column : columns_) {
    out += fmt::format(" {} |", escape_markdown(column.title));
    rule += column.right ? "---:|" : "---|";
  }
  out += "\n" + rule + "\n";
  for (const auto& row : rows_) {
    out += "|";
    for (const std::string& cell : row) {
      out += fmt::format(" {} |", escape_markdown(cell));
    }
    out += "\n";
  }
  return out;
}

}  // namespace luna::report
