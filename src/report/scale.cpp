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
  const double decades = log_high_ - log_low_;
  const bool fine = decades < 2.5;
  std::vector<double> ticks;
  for (int e = static_cast<int>(std::floor(log_low_)); e <= log_high_; ++e) {
    for (const double digit : {1.0, 2.0, 5.0}) {
      if (digit != 1.0 && !fine) continue;
      const double value = digit * std::pow(10.0, e);
      const double place = std::log10(value);
      if (place >= log_low_ - 1e-9 && place <= log_high_ + 1e-9) {
        ticks.push_back(value);
      }
    }
  }
  return ticks;
}

}  // namespace luna::report
