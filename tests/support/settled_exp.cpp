// Every test's numbers are those of a process whose first call is made.

#include <gtest/gtest.h>
#include <luna/ops/vector_functions.h>

namespace luna::testing {
namespace {

class SettledExp : public ::testing::Environment {
  void SetUp() override { ops::settle_vector_functions(); }
};

[[maybe_unused]] const auto* const settled_exp =
    ::testing::AddGlobalTestEnvironment(new SettledExp);

}  // namespace
}  // namespace luna::testing
