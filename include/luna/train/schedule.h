#pragma once

#include <luna/train/train_config.h>

namespace luna::train {

/// The learning rate of step `step` (from 0) of a run of `steps`. With
/// w = warmup, t = (step - w) / (steps - w) clamped to [0, 1]:
///
///   step < w      lr (start + (1 - start) step / w)
///   constant      lr
///   cosine        lr (floor + (1 - floor) (1 + cos(pi t)) / 2)
///   polynomial    lr (floor + (1 - floor) (1 - t)^power)
///   inverse_sqrt  lr max(floor, sqrt(max(w, 1) / max(step, 1)))
///   milestones    lr factor^(how many of the milestones are <= step)
double learning_rate(const ScheduleConfig& schedule, double lr, int64_t steps,
                     int64_t step);

}  // namespace luna::train
