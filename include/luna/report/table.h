#pragma once

#include <string>
#include <vector>

namespace luna::report {

struct Column {
  std::string title;
  bool right = true;  ///< numbers to the right, words to the left
};

/// A table of words, for a terminal, a page or Markdown.
class Table {
 public:
  explicit Table(std::vector<Column> columns);

  /// One cell a column.
  void add_row(std::vector<std::string> cells);
  /// What follows is a group of its own: a blank line, a rule.
  void start_group();

  bool empty() const { return rows_.empty(); }

  std::string text() const;
  std::string html() const;
  std::string markdown() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
  std::vector<std::size_t> group_starts_;
};

}  // namespace luna::report
