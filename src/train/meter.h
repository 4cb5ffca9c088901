#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <optional>
#include <string>

#include "ops/step_verdict.h"

namespace luna::train {

/// Steps that left the weights as they were.
struct Skips {
  enum class Why {
    kNone = 0,
    kLoss = static_cast<int>(ops::kBadLoss),
    kGradient = static_cast<int>(ops::kBadGradient)
  };

  int64_t total = 0;     ///< of the whole run
  int64_t in_row = 0;    ///< up to the last step
  Why why = Why::kNone;  ///< of the latest
};
std::string describe(Skips::Why why);

/// Of the steps since the means were last taken that were not skipped; NaN if
/// there was none.
struct Means {
  double loss = 0.0;
  double accuracy = 0.0;
};

/// A meter's counts on their way to the host.
class Reading {
 public:
  explicit Reading(const at::Tensor& meter);

  bool arrived() const;
  /// Both wait until it has.
  Means means() const;
  Skips skips() const;

 private:
  const double* counts() const;

  at::Tensor host_;
  std::optional<c10::Event> sent_{};  ///< none: it never had to travel
};

}  // namespace luna::train
