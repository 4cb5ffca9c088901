#include "luna/train/schedule.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numbers>

namespace luna::train {
namespace {

/// How many of the milestones "300000,450000" are behind `step`.
int64_t milestones_passed(const std::string& text, int64_t step) {
  int64_t passed = 0, before = 0;
  const char* at = text.data();
  const char* const end = at + text.size();
  bool good = at < end;
  while (good && at < end) {
    int64_t milestone = 0;
    const auto read = std::from_chars(at, end, milestone);
    good = read.ec == std::errc() && milestone > before &&
           (read.ptr == end || (*read.ptr == ',' && read.ptr + 1 < end));
    if (step >= milestone) ++passed;
    before = milestone;
    at = read.ptr == end ? end : read.ptr + 1;
  }
  TORCH_CHECK_VALUE(good,
                    "schedule.milestones: expected rising steps with commas "
                    "between them, got \"",
                    text, "\"");
  return passed;
}

}  // namespace

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
  if (schedule.name == "milestones") {
    return lr * std::pow(schedule.factor,
                         milestones_passed(schedule.milestones, step));
  }
  TORCH_CHECK_VALUE(schedule.name == "inverse_sqrt",
                    "learning_rate: expected constant, cosine, polynomial, "
                    "inverse_sqrt or milestones, got ",
                    schedule.name);
  return lr * std::max(schedule.floor,
                       std::sqrt(std::max(warmup, 1.0) / std::max(now, 1.0)));
}

}  // namespace luna::train
