#include "train/prefetch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <thread>

namespace luna::train {
namespace {

std::vector<data::Batch> numbered(int64_t step) {
  data::Batch batch;
  batch.indices = {step};
  return {batch};
}

TEST(Prefetch, GivesStepsInOrder) {
  Prefetch prefetch(numbered, 5, 40);
  for (int64_t step = 5; step < 40; ++step) {
    EXPECT_EQ(prefetch.next()[0].indices[0], step);
  }
}

TEST(Prefetch, StaysTwoStepsAhead) {
  std::atomic<int64_t> made = 0;
  Prefetch prefetch(
      [&](int64_t step) {
        ++made;
        return numbered(step);
      },
      0, 100);
  prefetch.next();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_LE(made, 4);  // one taken, two ready, one in hand
  EXPECT_GE(made, 3);
}

TEST(Prefetch, HandsOverTheError) {
  Prefetch prefetch(
      [](int64_t step) {
        if (step == 2) throw std::runtime_error("bad sample");
        return numbered(step);
      },
      0, 9);
  prefetch.next();
  prefetch.next();
  EXPECT_THROW(prefetch.next(), std::runtime_error);
}

}  // namespace
}  // namespace luna::train
