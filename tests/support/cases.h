#pragma once

// The devices, dtypes and tolerances every op is tested with, stated once.

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

namespace luna::testing {

/// Errors are norms of the difference over the norm of the reference. In
/// bfloat16 and float16 an op may also err twice as much as the plain formula
/// computed in that dtype does.
struct Case {
  at::DeviceType device;
  at::ScalarType dtype;
  double forward;
  double gradient;

  bool low_precision() const {
    return dtype == at::kBFloat16 || dtype == at::kHalf;
  }
  /// The dtype of parameters, weights and states beside such inputs.
  at::ScalarType wide_dtype() const {
    return dtype == at::kDouble ? at::kDouble : at::kFloat;
  }
  /// How far two calls that should give the same numbers may differ.
  double agreement() const { return low_precision() ? 2 * forward : forward; }
};

inline std::vector<Case> cases_on(at::DeviceType device) {
  return {{device, at::kDouble, 1e-12, 1e-11},
          {device, at::kFloat, 1e-5, 1e-4},
          {device, at::kBFloat16, 2e-3, 4e-3},
          {device, at::kHalf, 2.5e-4, 5e-4}};
}

inline std::vector<Case> all_cases() {
  std::vector<Case> cases = cases_on(at::kCPU);
  for (const Case& c : cases_on(at::kCUDA)) cases.push_back(c);
  return cases;
}

inline std::string name_of(const Case& c) {
  return std::string(c.device == at::kCPU ? "cpu_" : "cuda_") +
         at::toString(c.dtype);
}

inline void PrintTo(const Case& c, std::ostream* out) { *out << name_of(c); }

class OpTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (GetParam().device == at::kCUDA && !at::globalContext().hasCUDA()) {
      GTEST_SKIP() << "no CUDA device: " << name_of(GetParam())
                   << " is not tested";
    }
  }
};

}  // namespace luna::testing

/// Runs a suite of TEST_P(suite, ...) on every case.
#define LUNA_ALL_CASES(suite)                                        \
  INSTANTIATE_TEST_SUITE_P(                                          \
      , suite, ::testing::ValuesIn(::luna::testing::all_cases()),    \
      [](const ::testing::TestParamInfo<::luna::testing::Case>& i) { \
        return ::luna::testing::name_of(i.param);                    \
      })
