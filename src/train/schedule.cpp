#include "luna/train/schedule.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace luna::train {

double learning_rate(const ScheduleConfig& schedule, double lr, int64_t steps,
                     int64_t step) {
  const double warmup = static_cast<double>(schedule.warmup);
  const double now = static_cast<double>(step);
  if (step < schedule.warmup) {
    return lr * (schedule.start + (1 - schedule.start) * now / warmup);
  }
  const double rest = std::max(1.0, static_cast<double>(steps) - warmup);
  const double t = std::clamp((now - warmup) / rest, 0.0, 1.0);
  const auto from_floor = [&](double share) {
    return lr * (schedule.floor + (1 - schedule.floor) * share);
  };
  if (schedule.name == "constant") return lr;
  if (schedule.name == "cosine") {
    return from_floor((1 + std::cos(std::numbers::pi * t)) / 2);
  }
  if (schedule.name == "polynomial") {
    return from_floor(std::pow(1 - t, schedule.power));
  }
  TORCH_CHECK_VALUE(schedule.name == "inverse_sqrt",
                    "learning_rate: expected constant, cosine, polynomial or "
                    "inverse_sqrt, got ",
                    schedule.name);
  return lr * std::max(schedule.floor,
                       std::sqrt(std::max(warmup, 1.0) / std::max(now, 1.0)));
}

}  // namespace luna::train
