#pragma once

#include <cuda_runtime_api.h>

#include "ops/gathered_id.h"
#include "ops/step_verdict.h"

// The small kernels of a training step.

namespace luna::cuda {

void gather_sequences(const ops::Gather& gather, cudaStream_t stream);
void gather_packed(const ops::Gather& gather, cudaStream_t stream);

struct JudgeStep {
  double* meter;
  const float *loss, *norm, *correct;
  ops::StepRules rules;
  float* verdict;
};
void judge_step(const JudgeStep& step, cudaStream_t stream);

}  // namespace luna::cuda
