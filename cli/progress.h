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
  /// A line, where there is no bar to look at.
  void log(const std::string& text);

 private:
  void wipe();

  bool terminal_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point start_, last_;
};

}  // namespace luna::cli
