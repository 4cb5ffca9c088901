#pragma once

#include <cstdint>

namespace luna::ops {

/// What is counted, float64 each. The first four since they were last read.
enum MeterEntry : int {
  kLosses,
  kSteps,
  kCorrect,
  kSamples,
  kSkipped,       ///< steps of the whole run
  kSkippedInRow,  ///< steps up to the last
  kSkippedWhy,    ///< of the latest: kBadLoss or kBadGradient
  kMeterEntries
};
constexpr double kBadLoss = 1, kBadGradient = 2;

struct StepRules {
  double samples = 0;  ///< of the step
  double clip = 0;     ///< greatest norm; 0: any
  double limit = 0;    ///< after as many skipped in a row all are skipped
};

struct StepFacts {
  float loss = 0, norm = 0, correct = 0;
};

/// Takes note of a step in `meter`; gives scale, skip, taken in `verdict`.
constexpr void judge(double* meter, const StepFacts& f, const StepRules& rules,
                     float* verdict) {
  const bool loss_finite = f.loss - f.loss == 0;
  const bool good = loss_finite && f.norm - f.norm == 0;
  const bool skip = !good || meter[kSkippedInRow] >= rules.limit;
  if (!good) meter[kSkippedWhy] = loss_finite ? kBadGradient : kBadLoss;
  if (skip) {
    meter[kSkipped] += 1;
    meter[kSkippedInRow] += 1;
  } else {
    meter[kSkippedInRow] = 0;
    meter[kLosses] += f.loss;
    meter[kSteps] += 1;
    meter[kCorrect] += f.correct;
    meter[kSamples] += rules.samples;
  }
  const float ratio =
      rules.clip > 0 ? f.norm / static_cast<float>(rules.clip) : 1.0f;
  verdict[0] = ratio > 1 ? ratio : 1.0f;
  verdict[1] = skip ? 1.0f : 0.0f;
  verdict[2] = skip ? 0.0f : 1.0f;
}

}  // namespace luna::ops
