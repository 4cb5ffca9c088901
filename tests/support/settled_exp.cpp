// The first call of a vector function (exp, log, sqrt...) in LibTorch's MKL
// 2024.2 is not safe in several threads: mkl_vml_serv_cpu_detect stores the
// CPU's kind, then the number that its tables know it by. A thread that reads
// in between takes, on an Intel CPU with AVX-512, the function of the lowest
// accuracy (github.com/pytorch/pytorch/issues/188792): e^x of the float64
// references is then wrong by 1e-9 in that thread's share, once in a process.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace luna::testing {
namespace {

/// Makes the first call before any test, in one thread: one number is never
/// shared out.
class SettledExp : public ::testing::Environment {
  void SetUp() override { at::ones({1}, at::kDouble).exp(); }
};

[[maybe_unused]] const auto* const settled_exp =
    ::testing::AddGlobalTestEnvironment(new SettledExp);

}  // namespace
}  // namespace luna::testing
