#pragma once

#include <chrono>
#include <string>

namespace luna::cli {

/// Progress on stderr: a bar where it is a terminal, lines where it is not.
class Progress {
 public:
  Progress();
  ~Progress();  ///< wipes the bar

  void update(double share, const std::string& what);
  /// The same with a line of one's own behind a short bar, up to 66 columns.
  void update_line(double share, const std::string& line);
  /// A line, where there is no bar to look at.
  void log(const std::string& text);
  /// A line that stays, above the bar if there is one.
  void note(const std::string& text);

 private:
  bool is_time();
  void draw(double share, int width, const std::string& rest);
  void wipe();

  bool terminal_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point start_, last_;
};

}  // namespace luna::cli
