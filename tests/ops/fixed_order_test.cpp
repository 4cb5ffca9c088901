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

TEST(FixedOrder, GivesWayToAnyOrderOnEveryThread) {
  {
    const AnyOrder any;
    std::thread([] {
      const FixedOrder fixed;
      EXPECT_FALSE(is_fixed());
    }).join();
  }
  const FixedOrder fixed;
  EXPECT_TRUE(is_fixed());
}

}  // namespace
}  // namespace luna::ops
