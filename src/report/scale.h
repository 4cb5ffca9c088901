// An axis: from a value to a place on the drawing, and its ticks.
#pragma once

#include <vector>

namespace luna::report {

class Scale {
 public:
  /// Values low..high on places from..to.
  static Scale linear(double low, double high, double from, double to);
  /// The same with equal distances for equal ratios; low > 0.
  static Scale logarithmic(double low, double high, double from, double to);

  double operator()(double value) const;

  /// Round values inside the range. Linear: about `wanted` of them.
  /// Logarithmic: 1, 10, 100, ...; with 2 and 5, or finer steps, where the
  /// range is small.
  std::vector<double> ticks(int wanted = 5) const;

 private:
  Scale(bool logarithmic, double low, double high, double from, double to);
  std::vector<double> linear_ticks(int wanted) const;
  std::vector<double> decimal_ticks() const;

  bool logarithmic_;
  double low_, high_;  // of the value, or of its logarithm
  double from_, to_;
};

}  // namespace luna::report
