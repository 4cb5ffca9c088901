#include "luna/data/batch.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "data/augment.h"
#include "luna/data/memory_dataset.h"

namespace luna::data {
namespace {

using Bytes = std::vector<uint8_t>;
using Numbers = std::vector<int64_t>;

Numbers row(const at::Tensor& tensor, int64_t index) {
  const at::Tensor r = tensor[index].contiguous();
  return {r.const_data_ptr<int64_t>(), r.const_data_ptr<int64_t>() + r.numel()};
}

Numbers values(const at::Tensor& tensor) { return row(tensor.unsqueeze(0), 0); }

MemoryDataset words() {
  MemoryDataset data({.task = "words", .vocabulary = 10, .classes = 3});
  data.add({.ids = Bytes{1, 2, 3}, .label = 2});
  data.add({.ids = Bytes{}, .label = 0});
  data.add({.ids = Bytes{9, 0, 9, 0, 9}, .label = 1});
  return data;
}

TEST(MemoryDataset, KeepsWhatWasAdded) {
  const MemoryDataset data = words();
  EXPECT_EQ(data.size(), 3);
  EXPECT_EQ(data.longest(), 5);
  EXPECT_TRUE(std::ranges::equal(data[0].ids, Bytes{1, 2, 3}));
  EXPECT_TRUE(data[1].ids.empty());
  EXPECT_EQ(data[2].label, 1);
  EXPECT_TRUE(data[2].second.empty());
  EXPECT_THROW(data[3], c10::IndexError);
  EXPECT_THROW(data[-1], c10::IndexError);
}

TEST(MemoryDataset, KeepsPairs) {
  MemoryDataset data(
      {.task = "pairs", .vocabulary = 256, .classes = 2, .pairs = true});
  data.add({.ids = Bytes{255}, .second = Bytes{1, 2}, .label = 1});
  data.add({.ids = Bytes{3, 4, 5}, .second = Bytes{6}, .label = 0});
  EXPECT_TRUE(std::ranges::equal(data[0].second, Bytes{1, 2}));
  EXPECT_TRUE(std::ranges::equal(data[1].ids, Bytes{3, 4, 5}));
  EXPECT_TRUE(std::ranges::equal(data[1].second, Bytes{6}));
}

TEST(MemoryDataset, RefusesWhatDoesNotFitTheTask) {
  MemoryDataset data = words();
  EXPECT_THROW(data.add({.ids = Bytes{10}}), c10::ValueError);
  EXPECT_THROW(data.add({.ids = Bytes{1}, .label = 3}), c10::ValueError);
  EXPECT_THROW(data.add({.ids = Bytes{1}, .label = -1}), c10::ValueError);
  EXPECT_EQ(data.size(), 3);
  MemoryDataset pictures({.task = "image",
                          .vocabulary = 256,
                          .classes = 2,
                          .height = 2,
                          .width = 2});
  EXPECT_THROW(pictures.add({.ids = Bytes{1, 2, 3}}), c10::ValueError);
  EXPECT_THROW(MemoryDataset({.task = "x", .vocabulary = 257, .classes = 2}),
               c10::ValueError);
  EXPECT_THROW(MemoryDataset({.task = "x", .vocabulary = 2, .classes = 0}),
               c10::ValueError);
}

TEST(MemoryDataset, RefusesArraysThatDoNotFitEachOther) {
  const TaskInfo info{.task = "words", .vocabulary = 10, .classes = 3};
  const MemoryDataset good(info, {1, 2, 3}, {0, 1, 3}, {0, 2});
  EXPECT_EQ(good.longest(), 2);
  EXPECT_THROW(MemoryDataset(info, {1, 2, 3}, {0, 3}, {0, 2}), c10::ValueError);
  EXPECT_THROW(MemoryDataset(info, {1, 2, 3}, {0, 1, 2}, {0, 2}),
               c10::ValueError);
  EXPECT_THROW(MemoryDataset(info, {1, 2, 3}, {0, 4, 3}, {0, 2}),
               c10::ValueError);
  EXPECT_THROW(MemoryDataset(info, {1, 2, 10}, {0, 1, 3}, {0, 2}),
               c10::ValueError);
  EXPECT_THROW(MemoryDataset(info, {1, 2, 3}, {0, 1, 3}, {0, 3}),
               c10::ValueError);
}

TEST(MakeBatch, PadsToTheLongestAndSaysTheLengths) {
  const Batch batch = make_batch(words(), Numbers{2, 0, 1}, {});
  EXPECT_EQ(row(batch.first.ids, 0), (Numbers{9, 0, 9, 0, 9}));
  EXPECT_EQ(row(batch.first.ids, 1), (Numbers{1, 2, 3, 11, 11}));
  EXPECT_EQ(row(batch.first.ids, 2), (Numbers{11, 11, 11, 11, 11}));
  EXPECT_EQ(values(batch.first.lengths), (Numbers{5, 3, 0}));
  EXPECT_EQ(values(batch.labels), (Numbers{1, 2, 0}));
  EXPECT_EQ(batch.indices, (Numbers{2, 0, 1}));
  EXPECT_FALSE(batch.second.has_value());
}

TEST(MakeBatch, CutsThenPutsClsInFrontThenPads) {
  const Batch batch = make_batch(words(), Numbers{2, 0},
                                 {.cls = true, .max_length = 4, .pad_to = 6});
  EXPECT_EQ(row(batch.first.ids, 0), (Numbers{10, 9, 0, 9, 0, 11}));
  EXPECT_EQ(row(batch.first.ids, 1), (Numbers{10, 1, 2, 3, 11, 11}));
  EXPECT_EQ(values(batch.first.lengths), (Numbers{5, 4}));
}

TEST(MakeBatch, PadsBothSidesOfPairsApart) {
  MemoryDataset data(
      {.task = "pairs", .vocabulary = 256, .classes = 2, .pairs = true});
  data.add({.ids = Bytes{255}, .second = Bytes{1, 2}, .label = 1});
  data.add({.ids = Bytes{3, 4, 5}, .second = Bytes{6}, .label = 0});
  const Batch batch = make_batch(data, Numbers{0, 1}, {.cls = true});
  EXPECT_EQ(row(batch.first.ids, 0), (Numbers{256, 255, 257, 257}));
  ASSERT_TRUE(batch.second.has_value());
  EXPECT_EQ(row(batch.second->ids, 0), (Numbers{256, 1, 2}));
  EXPECT_EQ(row(batch.second->ids, 1), (Numbers{256, 6, 257}));
  EXPECT_EQ(values(batch.second->lengths), (Numbers{3, 2}));
}

TEST(MakeBatch, RefusesWhatMakesNoSense) {
  EXPECT_THROW(make_batch(words(), Numbers{}, {}), c10::ValueError);
  EXPECT_THROW(make_batch(words(), Numbers{3}, {}), c10::IndexError);
  EXPECT_THROW(make_batch(words(), Numbers{2}, {.pad_to = 4}), c10::ValueError);
  EXPECT_THROW(make_batch(words(), Numbers{0}, {.augment = true}),
               c10::ValueError);
}

TEST(DataOrder, EveryEpochIsAPermutation) {
  for (const int64_t size : {1, 2, 7, 100}) {
    DataOrder order(size, 3, 5);
    Numbers seen;
    for (int64_t step = 0; step < size; ++step) {  // 3 epochs
      for (const int64_t index : order.batch(step)) seen.push_back(index);
    }
    for (int epoch = 0; epoch < 3; ++epoch) {
      Numbers sorted(seen.begin() + epoch * size,
                     seen.begin() + (epoch + 1) * size);
      std::sort(sorted.begin(), sorted.end());
      Numbers expected(size);
      std::iota(expected.begin(), expected.end(), int64_t{0});
      EXPECT_EQ(sorted, expected) << "size " << size << ", epoch " << epoch;
    }
  }
}

TEST(DataOrder, AskedInAnyOrderGivesTheSame) {
  DataOrder forwards(10, 4, 1), resumed(10, 4, 1);
  std::vector<Numbers> batches;
  for (int64_t step = 0; step < 20; ++step) {
    batches.push_back(forwards.batch(step));
  }
  for (int64_t step = 19; step >= 0; --step) {
    EXPECT_EQ(resumed.batch(step), batches[step]);
  }
  EXPECT_EQ(resumed.epoch(0), 0);
  EXPECT_EQ(resumed.epoch(2), 0);  // samples 8 ... 11 straddle
  EXPECT_EQ(resumed.epoch(3), 1);
}

TEST(DataOrder, SeedsAndEpochsDiffer) {
  DataOrder one(100, 100, 1), two(100, 100, 2);
  EXPECT_NE(one.batch(0), two.batch(0));
  EXPECT_NE(one.batch(0), one.batch(1));
}

/// Every index comes first about equally often: chi-squared with 9 degrees of
/// freedom exceeds 33.7 once in 10,000.
TEST(DataOrder, IsUniform) {
  constexpr int64_t kSize = 10, kEpochs = 10000;
  DataOrder order(kSize, kSize, 3);
  std::map<int64_t, double> first;
  for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    first[order.batch(epoch)[0]] += 1;
  }
  double chi = 0;
  for (int64_t i = 0; i < kSize; ++i) {
    const double expected = double(kEpochs) / kSize;
    chi += (first[i] - expected) * (first[i] - expected) / expected;
  }
  EXPECT_LT(chi, 33.7);
}

TEST(DataOrder, RefusesNoSamples) {
  EXPECT_THROW(DataOrder(0, 1, 0), c10::ValueError);
  EXPECT_THROW(DataOrder(1, 0, 0), c10::ValueError);
  EXPECT_THROW(DataOrder(1, 1, 0).batch(-1), c10::ValueError);
}

class Augment : public ::testing::Test {
 protected:
  Augment() : picture_(info_.height * info_.width) {
    std::iota(picture_.begin(), picture_.end(), uint8_t{1});
  }
  Bytes augmented(uint64_t seed, int64_t position) const {
    Bytes out(picture_.size());
    augment_picture(picture_, info_, seed, position, out);
    return out;
  }
  /// By definition, pixel by pixel.
  Bytes moved(bool flip, int64_t down, int64_t right) const {
    Bytes out(picture_.size());
    for (int64_t y = 0; y < info_.height; ++y) {
      for (int64_t x = 0; x < info_.width; ++x) {
        const int64_t from_y = y - down, from_x = x - right;
        if (from_y < 0 || from_y >= info_.height || from_x < 0 ||
            from_x >= info_.width) {
          continue;
        }
        const int64_t column = flip ? info_.width - 1 - from_x : from_x;
        out[y * info_.width + x] = picture_[from_y * info_.width + column];
      }
    }
    return out;
  }

  TaskInfo info_{.task = "image",
                 .vocabulary = 256,
                 .classes = 2,
                 .height = 12,
                 .width = 10};
  Bytes picture_;
};

TEST_F(Augment, IsOneOfAllFlipsAndShiftsAndReachesEachOne) {
  std::set<Bytes> expected, seen;
  for (const bool flip : {false, true}) {
    for (int64_t down = -4; down <= 4; ++down) {
      for (int64_t right = -4; right <= 4; ++right) {
        expected.insert(moved(flip, down, right));
      }
    }
  }
  for (int64_t position = 0; position < 3000; ++position) {
    seen.insert(augmented(1, position));
  }
  EXPECT_EQ(expected.size(), 162);
  EXPECT_EQ(seen, expected);
}

TEST_F(Augment, DependsOnSeedAndPositionAlone) {
  MemoryDataset data(info_);
  for (int i = 0; i < 4; ++i) data.add({.ids = picture_, .label = 0});
  const BatchOptions options{.augment = true};
  const Batch whole = make_batch(data, Numbers{0, 1, 2, 3}, options, 9, 100);
  const Batch later = make_batch(data, Numbers{3, 2}, options, 9, 102);
  EXPECT_EQ(row(whole.first.ids, 2), row(later.first.ids, 0));
  EXPECT_EQ(row(whole.first.ids, 3), row(later.first.ids, 1));
  const Batch other = make_batch(data, Numbers{0, 1, 2, 3}, options, 10, 100);
  EXPECT_FALSE(at::equal(whole.first.ids, other.first.ids));
  const Bytes expected = augmented(9, 101);
  EXPECT_EQ(row(whole.first.ids, 1), Numbers(expected.begin(), expected.end()));
}

}  // namespace
}  // namespace luna::data
