#include "data/blend.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "luna/data/batch.h"
#include "luna/data/memory_dataset.h"

namespace luna::data {
namespace {

constexpr int64_t kHeight = 12, kWidth = 8;

TEST(Blend, SharesAreThoseAskedFor) {
  constexpr int64_t kDraws = 20000;
  int64_t mixed = 0, cut = 0;
  double own_of_mixed = 0, own_of_cut = 0;
  for (int64_t i = 0; i < kDraws; ++i) {
    const Blend b = draw_blend(3, i, {0.2, 0.5}, kHeight, kWidth);
    if (b.keep == 0) {
      ++cut;
      own_of_cut += b.own;
      ASSERT_TRUE(b.top >= 0 && b.top <= b.bottom && b.bottom <= kHeight);
      ASSERT_TRUE(b.left >= 0 && b.left <= b.right && b.right <= kWidth);
      const double box = (b.bottom - b.top) * (b.right - b.left);
      ASSERT_DOUBLE_EQ(b.own, 1 - box / (kHeight * kWidth));
    } else if (b.keep < 1) {
      ++mixed;
      own_of_mixed += b.own;
      ASSERT_EQ((std::array{b.top, b.bottom, b.left, b.right}),
                (std::array<int64_t, 4>{0, kHeight, 0, kWidth}));
      ASSERT_DOUBLE_EQ(b.own, b.keep);
    } else {
      ASSERT_EQ(b.own, 1);
    }
  }
  // Five standard deviations.
  EXPECT_NEAR(mixed, 0.2 * kDraws, 5 * std::sqrt(0.2 * 0.8 * kDraws));
  EXPECT_NEAR(cut, 0.5 * kDraws, 5 * std::sqrt(0.5 * 0.5 * kDraws));
  EXPECT_NEAR(own_of_mixed / mixed, 0.5, 0.03);
  EXPECT_GT(own_of_cut / cut, 0.5);  // boxes are cut at the edges
}

TEST(Blend, IsAFunctionOfSeedAndPosition) {
  const BlendShares shares{0.5, 0.5};
  int64_t same = 0;
  for (int64_t i = 0; i < 50; ++i) {
    EXPECT_EQ(draw_blend(1, i, shares, 32, 32).row(),
              draw_blend(1, i, shares, 32, 32).row());
    same += draw_blend(1, i, shares, 32, 32).row() ==
            draw_blend(2, i, shares, 32, 32).row();
  }
  EXPECT_LT(same, 5);
}

TEST(Blend, TakesFromThePartnerWithinTheBox) {
  const at::Tensor pixels = at::randn({5, 3, kHeight, kWidth}, at::kDouble);
  std::vector<Blend> blends;
  at::Tensor rows = at::empty({5, Blend::kColumns});
  for (int64_t i = 0; i < 5; ++i) {
    blends.push_back(draw_blend(7, i, {0.4, 0.6}, kHeight, kWidth));
    const auto row = blends.back().row();
    for (size_t c = 0; c < row.size(); ++c) rows[i][c] = row[c];
  }
  const at::Tensor out = blend_pictures(pixels, rows);
  const auto in = pixels.accessor<double, 4>(),
             given = out.accessor<double, 4>();
  for (int64_t i = 0; i < 5; ++i) {
    const Blend& b = blends[i];
    for (int64_t c = 0; c < 3; ++c) {
      for (int64_t y = 0; y < kHeight; ++y) {
        for (int64_t x = 0; x < kWidth; ++x) {
          const bool inside =
              y >= b.top && y < b.bottom && x >= b.left && x < b.right;
          const double keep = inside ? static_cast<float>(b.keep) : 1;
          EXPECT_NEAR(given[i][c][y][x],
                      keep * in[i][c][y][x] + (1 - keep) * in[4 - i][c][y][x],
                      1e-6);
        }
      }
    }
  }
}

TEST(Blend, BatchesOfOtherThingsAreRefused) {
  MemoryDataset words({.task = "words", .vocabulary = 4, .classes = 2});
  const std::vector<uint8_t> ids = {1, 2};
  words.add({.ids = ids});
  EXPECT_THROW(make_batch(words, std::vector<int64_t>{0}, {.mixup = 0.5}),
               c10::ValueError);
}

}  // namespace
}  // namespace luna::data
