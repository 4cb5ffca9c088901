#include "data/blocks.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include "data/lanczos.h"
#include "data/random.h"

namespace luna::data {
namespace {

TEST(Blocks, EveryItemOnce) {
  for (const int threads : {0, 1, 3}) {
    for (const int64_t total : {0, 1, 7, 100}) {
      std::vector<std::atomic<int>> seen(total);
      int64_t last_report = 0;
      for_each_block(
          total, 7, threads,
          [&](int64_t first, int64_t last) {
            EXPECT_LE(last - first, 7);
            for (int64_t i = first; i < last; ++i) ++seen[i];
          },
          [&](int64_t done, int64_t all) {
            EXPECT_GT(done, last_report);
            EXPECT_EQ(all, total);
            last_report = done;
          });
      for (const auto& count : seen) EXPECT_EQ(count, 1);
      EXPECT_EQ(last_report, total);
    }
  }
}

TEST(Blocks, ErrorsOfWorkersComeOut) {
  using namespace std::chrono_literals;
  std::atomic<int> calls = 0;
  EXPECT_THROW(for_each_block(1000, 1, 2,
                              [&](int64_t first, int64_t) {
                                ++calls;
                                if (first == 10) throw std::domain_error("x");
                                // Time for the error to be noticed.
                                std::this_thread::sleep_for(1ms);
                              }),
               std::domain_error);
  EXPECT_LT(calls, 1000);
}

TEST(Random, StreamsAreReproducibleAndDiffer) {
  const auto bits = [](uint64_t seed, uint64_t stream) {
    Random random(seed, stream);
    std::vector<uint32_t> all(8);
    for (uint32_t& one : all) one = random.bits();
    return all;
  };
  EXPECT_EQ(bits(1, 2), bits(1, 2));
  EXPECT_NE(bits(1, 2), bits(1, 3));
  EXPECT_NE(bits(1, 2), bits(2, 2));
}

// Chi-square with 9 degrees of freedom: above 33.7 once in 10,000.
TEST(Random, BelowIsUniform) {
  std::vector<double> counts(10);
  for (uint64_t stream = 0; stream < 1000; ++stream) {
    Random random(1, stream);
    for (int i = 0; i < 100; ++i) ++counts[random.below(10)];
  }
  double chi_square = 0;
  for (const double count : counts) {
    chi_square += (count - 1e4) * (count - 1e4) / 1e4;
  }
  EXPECT_LT(chi_square, 33.7);
  Random random(1, 0);
  for (int i = 0; i < 100; ++i) {
    const int64_t drawn = random.between(-2, 3);
    EXPECT_GE(drawn, -2);
    EXPECT_LE(drawn, 3);
    const double u = random.uniform();
    EXPECT_GE(u, 0.0);
    EXPECT_LT(u, 1.0);
  }
}

TEST(Lanczos, KeepsFlatPicturesAndMirrors) {
  SquareImage flat(17);
  std::fill(flat.pixels.begin(), flat.pixels.end(), uint8_t{200});
  const SquareImage small = shrink_lanczos(flat, 9);
  EXPECT_EQ(small.size, 9);
  EXPECT_EQ(small.pixels, std::vector<uint8_t>(81, 200));

  SquareImage spots(17), mirrored(17);
  spots.at(3, 5) = spots.at(4, 6) = spots.at(9, 2) = 255;
  for (int64_t y = 0; y < 17; ++y) {
    for (int64_t x = 0; x < 17; ++x) {
      mirrored.at(y, 16 - x) = spots.at(y, x);
    }
  }
  const SquareImage a = shrink_lanczos(spots, 9);
  const SquareImage b = shrink_lanczos(mirrored, 9);
  for (int64_t y = 0; y < 9; ++y) {
    for (int64_t x = 0; x < 9; ++x) EXPECT_EQ(a.at(y, x), b.at(y, 8 - x));
  }
}

// A line of four steps across, as a paddle has it. The three values are those
// of a horizontal paddle in the reference pictures, which have them times 1.5:
// 174 202 153 (rounded down from 202.5).
TEST(Lanczos, ShrinksAPaddleAsTheReferencesHaveIt) {
  SquareImage line(17);
  for (int64_t x = 8; x <= 12; ++x) line.at(8, x) = 255;
  const SquareImage small = shrink_lanczos(line, 9);
  EXPECT_EQ(small.at(4, 4), 102);
  EXPECT_EQ(small.at(4, 5), 135);
  EXPECT_EQ(small.at(4, 6), 116);
}

}  // namespace
}  // namespace luna::data
