#include "ops/dropout.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>

namespace luna::ops {
namespace {

constexpr int kTokens = 20000;

uint64_t token_key(int token) {
  return dropout_token_key(dropout_head_key(7, 11, DropoutMap::kPack, 2, 3),
                           token);
}

bool kept(int token, uint32_t slot, uint32_t threshold) {
  return dropout_bits(token_key(token), slot) >= threshold;
}

TEST(Dropout, ThresholdIsTheShareOfAllBits) {
  EXPECT_EQ(dropout_threshold(0), 0u);
  EXPECT_EQ(dropout_threshold(0.5), 1u << 31);
  EXPECT_EQ(dropout_threshold(0.25), 1u << 30);
  EXPECT_EQ(dropout_threshold(0.1), 429496729u);  // .1 x 2^32 = 429,496,729.6
}

// Standard deviations of a share of n: sqrt(p (1 - p) / n).
TEST(Dropout, EverySlotIsDroppedAsOftenAsAsked) {
  for (const double p : {0.1, 0.3, 0.5}) {
    const uint32_t threshold = dropout_threshold(p);
    const double deviation = std::sqrt(p * (1 - p) / kTokens);
    for (uint32_t slot = 0; slot < 64; ++slot) {
      int dropped = 0;
      for (int token = 0; token < kTokens; ++token) {
        dropped += !kept(token, slot, threshold);
      }
      EXPECT_NEAR(dropped / double{kTokens}, p, 5 * deviation)
          << "p " << p << ", slot " << slot;
    }
  }
}

// Whether one slot is dropped says nothing of others, or of the same slot of
// the next token.
TEST(Dropout, PlacesAreIndependent) {
  const double p = 0.3;
  const uint32_t threshold = dropout_threshold(p);
  const double both = p * p;
  const double deviation = std::sqrt(both * (1 - both) / kTokens);
  for (const uint32_t apart : {0u, 1u, 2u, 4u, 8u, 16u, 24u, 64u}) {
    for (uint32_t slot = 0; slot < 16; ++slot) {
      int dropped = 0;
      for (int token = 0; token < kTokens; ++token) {
        dropped += !kept(token, slot, threshold) &&
                   !kept(token + (apart == 0), slot ^ apart, threshold);
      }
      EXPECT_NEAR(dropped / double{kTokens}, both, 5 * deviation)
          << "slot " << slot << " and the one " << apart << " away";
    }
  }
}

// 16 equal parts of the range: chi-squared with 15 degrees of freedom is above
// 45 once in 10,000 times.
TEST(Dropout, BitsAreUniform) {
  for (const uint32_t slot : {2u, 10u}) {
    std::array<int, 16> counts{};
    for (int token = 0; token < kTokens; ++token) {
      ++counts[dropout_bits(token_key(token), slot) >> 28];
    }
    double chi_squared = 0;
    for (const int count : counts) {
      const double expected = kTokens / 16.0;
      chi_squared += (count - expected) * (count - expected) / expected;
    }
    EXPECT_LT(chi_squared, 45) << "slot " << slot;
  }
}

}  // namespace
}  // namespace luna::ops
