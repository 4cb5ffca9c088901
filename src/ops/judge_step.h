#pragma once

#include <ATen/core/Tensor.h>

#include "ops/step_verdict.h"

namespace luna::ops {

/// Decides on the device whether an optimizer step is taken, and counts (see
/// step_verdict.h). meter [kMeterEntries] float64 is written; loss, norm and
/// correct are float32 scalars. Gives float32 [3]: what gradients are to be
/// divided by, 1 if the step is skipped, 1 if it is taken.
at::Tensor judge_step(at::Tensor meter, const at::Tensor& loss,
                      const at::Tensor& norm, const at::Tensor& correct,
                      const StepRules& rules);

void check_judge_step(const at::Tensor& meter, const at::Tensor& loss,
                      const at::Tensor& norm, const at::Tensor& correct);

}  // namespace luna::ops
