#pragma once

#include <string>

namespace luna::cli {

/// Lines to a file or standard output, each by one call, so that a program
/// that is killed leaves whole lines.
class WholeLines {
 public:
  /// Empty: standard output. A file is made anew.
  explicit WholeLines(const std::string& path);
  ~WholeLines();
  WholeLines(const WholeLines&) = delete;
  WholeLines& operator=(const WholeLines&) = delete;

  /// `line` without its end.
  void write(std::string line);

 private:
  std::string path_;
  int descriptor_;
};

}  // namespace luna::cli
