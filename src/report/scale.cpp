#include "report/scale.h"

#include <algorithm>
#include <cmath>

namespace luna::report {

Scale Scale::linear(double low, double high, double from, double to) {
  return Scale(false, low, high, from, to);
}

Scale Scale::logarithmic(double low, double high, double from, double to) {
  return Scale(true, std::log10(low), std::log10(high), from, to);
}

Scale::Scale(bool logarithmic, double low, double high, double from, double to)
    : logarithmic_(logarithmic), low_(low), high_(high), from_(from), to_(to) {
  if (high_ - low_ < 1e-9) {  // one value alone stands in the middle
    low_ -= 0.5;
    high_ += 0.5;
  }
}

double Scale::operator()(double value) const {
  const double place = logarithmic_ ? std::log10(value) : value;
  return from_ + (place - low_) / (high_ - low_) * (to_ - from_);
}

std::vector<double> Scale::ticks(int wanted) const {
  return logarithmic_ ? decimal_ticks() : linear_ticks(wanted);
}

std::vector<double> Scale::linear_ticks(int wanted) const {
  const double rough = (high_ - low_) / std::max(wanted, 1);
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double digit : {5.0, 2.0, 1.0}) {
    if (digit * power >= rough * 0.999) step = digit * power;
  }
  std::vector<double> ticks;
  const double slack = 1e-6 * step;
  for (double i = std::ceil((low_ - slack) / step); i * step <= high_ + slack;
       ++i) {
    ticks.push_back(i == 0 ? 0 : i * step);  // no -0
  }
  return ticks;
}

std::vector<double> Scale::decimal_ticks() const {
  // From coarse to fine; the first that is fine enough for the range.
  static const std::vector<std::vector<double>> kDigits = {
      {1},
      {1, 2, 5},
      {1, 1.5, 2, 3, 4, 5, 6, 8},
      {1, 1.1, 1.2, 1.3, 1.4, 1.6, 1.8, 2,   2.2, 2.5, 2.8, 3,  3.5,
       4, 4.5, 5,   5.5, 6,   6.5, 7,   7.5, 8,   8.5, 9,   9.5}};
  std::vector<double> ticks;
  const std::size_t first = high_ - low_ < 2.5 ? 1 : 0;
  for (std::size_t i = first; i < kDigits.size() && ticks.size() < 3; ++i) {
    ticks.clear();
    for (int e = static_cast<int>(std::floor(low_)); e <= high_; ++e) {
      for (const double digit : kDigits[i]) {
        const double value = digit * std::pow(10.0, e);
        const double place = std::log10(value);
        if (place >= low_ - 1e-9 && place <= high_ + 1e-9) {
          ticks.push_back(value);
        }
      }
    }
  }
  return ticks;
}

}  // namespace luna::report
