#pragma once

// Tests of runs on every kind of device; those without a device say so.

#include <ATen/Context.h>
#include <c10/core/Device.h>
#include <gtest/gtest.h>

#include <string>

namespace luna::testing {

class DeviceTest : public ::testing::TestWithParam<c10::DeviceType> {
 protected:
  void SetUp() override {
    if (GetParam() != c10::kCUDA) return;
    if (!at::globalContext().hasCUDA()) {
      GTEST_SKIP() << "no CUDA device: runs on one are not tested";
    }
    at::globalContext().lazyInitDevice(c10::kCUDA);
  }
  c10::Device device() const {
    return c10::Device(GetParam(), GetParam() == c10::kCUDA ? 0 : -1);
  }
};

}  // namespace luna::testing

#define LUNA_EVERY_DEVICE(suite)                                               \
  INSTANTIATE_TEST_SUITE_P(                                                    \
      , suite, ::testing::Values(c10::kCPU, c10::kCUDA),                       \
      [](const auto& info) {                                                   \
        return std::string(info.param == c10::kCUDA ? "cuda_run" : "cpu_run"); \
      })
