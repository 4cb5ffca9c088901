#pragma once

#include <chrono>

namespace luna::train {

/// Seconds since it was made, and what was on it then.
class Stopwatch {
 public:
  explicit Stopwatch(double seconds = 0.0) : before_(seconds) {}

  double seconds() const {
    return before_ +
           std::chrono::duration<double>(Clock::now() - start_).count();
  }

 private:
  using Clock = std::chrono::steady_clock;
  double before_;
  Clock::time_point start_ = Clock::now();
};

}  // namespace luna::train
