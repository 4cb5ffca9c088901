#include "report/scale.h"

#include <cmath>

namespace luna::report {

LogScale::LogScale(double low, double high, double from, double to)
    : log_low_(std::log10(low)),
      log_high_(std::log10(high)),
      from_(from),
      to_(to) {
  if (log_high_ - log_low_ < 1e-9) {  // one value alone stands in the middle
    log_low_ -= 0.5;
    log_high_ += 0.5;
  }
}

double LogScale::operator()(double value) const {
  const double share = (std::log10(value) - log_low_) / (log_high_ - log_low_);
  return from_ + share * (to_ - from_);
}

std::vector<double> LogScale::decimal_ticks() const {
  // From coarse to fine; the first that is fine enough for the range.
  static const std::vector<std::vector<double>> kDigits = {
      {1},
      {1, 2, 5},
      {1, 1.5, 2, 3, 4, 5, 6, 8},
      {1, 1.1, 1.2, 1.3, 1.4, 1.6, 1.8, 2,   2.2, 2.5, 2.8, 3,  3.5,
       4, 4.5, 5,   5.5, 6,   6.5, 7,   7.5, 8,   8.5, 9,   9.5}};
  std::vector<double> ticks;
  const std::size_t first = log_high_ - log_low_ < 2.5 ? 1 : 0;
  for (std::size_t i = first; i < kDigits.size() && ticks.size() < 3; ++i) {
    ticks.clear();
    for (int e = static_cast<int>(std::floor(log_low_)); e <= log_high_; ++e) {
      for (const double digit : kDigits[i]) {
        const double value = digit * std::pow(10.0, e);
        const double place = std::log10(value);
        if (place >= log_low_ - 1e-9 && place <= log_high_ + 1e-9) {
          ticks.push_back(value);
        }
      }
    }
  }
  return ticks;
}

}  // namespace luna::report
