#include "train/meter.h"

#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace luna::train {

std::string describe(Skips::Why why) {
  switch (why) {
    case Skips::Why::kNone:
      return "nothing was skipped";
    case Skips::Why::kLoss:
      return "the loss is not finite";
    case Skips::Why::kGradient:
      return "the gradient is not finite";
  }
  return "";
}

Reading::Reading(const at::Tensor& meter) {
  const c10::Device device = meter.device();
  host_ = at::empty(meter.sizes(),
                    at::dtype(at::kDouble).pinned_memory(device.is_cuda()));
  host_.copy_(meter, /*non_blocking=*/true);
  if (device.is_cpu()) return;
  sent_.emplace(device.type());
  sent_->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

bool Reading::arrived() const { return !sent_ || sent_->query(); }

const double* Reading::counts() const {
  if (sent_) sent_->synchronize();
  return host_.const_data_ptr<double>();
}

Means Reading::means() const {
  const double* const c = counts();
  return {c[ops::kLosses] / c[ops::kSteps],
          c[ops::kCorrect] / c[ops::kSamples]};
}

Skips Reading::skips() const {
  const double* const c = counts();
  return {static_cast<int64_t>(c[ops::kSkipped]),
          static_cast<int64_t>(c[ops::kSkippedInRow]),
          static_cast<Skips::Why>(c[ops::kSkippedWhy])};
}

}  // namespace luna::train
