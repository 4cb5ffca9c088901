#include "ops/fixed_order.h"

#include <gtest/gtest.h>

#include <thread>

namespace luna::ops {
namespace {

bool is_fixed() { return at::globalContext().deterministicAlgorithms(); }

TEST(FixedOrder, HoldsWhileItLives) {
  ASSERT_FALSE(is_fixed());
  {
    const FixedOrder fixed;
    EXPECT_TRUE(is_fixed());
  }
  EXPECT_FALSE(is_fixed());
}

TEST(AnyOrder, IsAllowedOnEveryThreadWhileItLives) {
  {
    const AnyOrder any;
    std::thread([] { EXPECT_TRUE(AnyOrder::is_allowed()); }).join();
  }
  EXPECT_FALSE(AnyOrder::is_allowed());
}

}  // namespace
}  // namespace luna::ops
