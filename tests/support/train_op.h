#pragma once

// What tests of a training step's fused ops share.

#include <ATen/ATen.h>

#include "support/check.h"
#include "support/device.h"
#include "support/filled_memory.h"

namespace luna::testing {

/// An op on a device, over memory that is NaN before it is written.
class TrainOpTest : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    at::manual_seed(3);
  }
  /// The same numbers on the device, a leaf.
  at::Tensor leaf(const at::Tensor& x) const {
    return x.detach().to(device()).clone().set_requires_grad(true);
  }
  at::Tensor seed() const {
    return at::tensor({int64_t{123456789}, int64_t{-987}}, at::kLong)
        .to(device());
  }

 private:
  const FilledMemory filled_;
};

/// The same numbers in float64 on the CPU, a leaf.
inline at::Tensor exact(const at::Tensor& x) {
  return x.detach().to(at::kDouble).clone().set_requires_grad(true);
}

}  // namespace luna::testing
