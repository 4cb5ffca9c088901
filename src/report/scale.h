// A logarithmic axis: from a value to a place on the drawing, and its ticks.
#pragma once

#include <vector>

namespace luna::report {

class LogScale {
 public:
  /// Values low..high (both > 0) on places from..to.
  LogScale(double low, double high, double from, double to);

  double operator()(double value) const;

  /// 1, 10, 100, ...; with 2 and 5, or finer steps, where the range is small.
  std::vector<double> decimal_ticks() const;

 private:
  double log_low_, log_high_, from_, to_;
};

}  // namespace luna::report
