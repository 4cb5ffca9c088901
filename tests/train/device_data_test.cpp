#include "train/device_data.h"

#include <ATen/Context.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>

#include "data/augment.h"
#include "luna/data/memory_dataset.h"
#include "luna/train/schedule.h"
#include "support/check.h"
#include "support/device.h"
#include "train/step_table.h"
#include "train/tiny.h"

// Batches and their order on a device are those of the host. On CPU tensors
// and, where there is one, on a GPU.

namespace luna::train {
namespace {

using luna::testing::DeviceTest;
using luna::testing::expect_same;
using luna::testing::tiny_config;
using luna::testing::tiny_data;
using Numbers = std::vector<int64_t>;

class DeviceDataTest : public DeviceTest {};

void expect_sequences(const data::Sequences& actual,
                      const data::Sequences& expected, const char* which) {
  expect_same(actual.ids.cpu(), expected.ids, std::string(which) + " ids");
  expect_same(actual.lengths.cpu(), expected.lengths,
              std::string(which) + " lengths");
  // Known of all samples, not of these alone.
  EXPECT_TRUE(!actual.full || expected.full) << which;
}

data::MemoryDataset pairs() {
  data::MemoryDataset data(
      {.task = "pairs", .vocabulary = 256, .classes = 4, .pairs = true});
  for (int64_t i = 0; i < 9; ++i) {
    const std::vector<uint8_t> first(i + 1, static_cast<uint8_t>(i)),
        second(12 - i, static_cast<uint8_t>(200 + i));
    data.add({.ids = first, .second = second, .label = i % 4});
  }
  return data;
}

data::MemoryDataset pictures(int64_t channels = 1) {
  data::MemoryDataset data({.task = "pictures",
                            .vocabulary = 256,
                            .classes = 2,
                            .height = 9,
                            .width = 7,
                            .channels = channels});
  for (int64_t i = 0; i < 6; ++i) {
    std::vector<uint8_t> ids(63 * channels);
    for (size_t j = 0; j < ids.size(); ++j) {
      ids[j] = static_cast<uint8_t>(1 + 31 * i + 3 * j);
    }
    data.add({.ids = ids, .label = i % 2});
  }
  return data;
}

TEST_P(DeviceDataTest, GathersWhatMakeBatchMakes) {
  const auto words = tiny_data(50, 1);
  const data::MemoryDataset two = pairs(), seen = pictures();
  for (const data::Dataset* data :
       {static_cast<const data::Dataset*>(words.get()),
        static_cast<const data::Dataset*>(&two),
        static_cast<const data::Dataset*>(&seen)}) {
    for (const bool cls : {false, true}) {
      for (const int64_t max_length : {0, 4}) {
        data::BatchOptions form{.cls = cls, .max_length = max_length};
        const DeviceData there(*data, form, device());
        const Numbers indices = {3, 0, 5, 3};
        form.pad_to = there.longest();
        const data::Batch expected = make_batch(*data, indices, form);
        const data::Batch actual = there.gather(
            at::tensor(indices, at::kLong).to(device()), there.longest());
        expect_sequences(actual.first, expected.first, "first");
        ASSERT_EQ(actual.second.has_value(), expected.second.has_value());
        if (expected.second) {
          expect_sequences(*actual.second, *expected.second, "second");
        }
        expect_same(actual.labels.cpu(), expected.labels, "labels");
        for (const int64_t i : indices) {
          const data::Batch one = make_batch(
              *data, Numbers{i}, {.cls = cls, .max_length = max_length});
          int64_t longest = one.first.ids.size(1);
          EXPECT_EQ(there.tokens(i, 0), longest);
          if (one.second) {
            EXPECT_EQ(there.tokens(i, 1), one.second->ids.size(1));
            longest = std::max(longest, one.second->ids.size(1));
          }
          EXPECT_EQ(there.length(i), longest);
        }
      }
    }
  }
}

/// Row i of the packed ones.
at::Tensor sequence(const data::Sequences& packed, int64_t i) {
  const at::Tensor starts = packed.packed->starts.cpu();
  const int64_t begin = starts[i].item<int64_t>();
  return packed.ids.cpu()[0].narrow(0, begin,
                                    starts[i + 1].item<int64_t>() - begin);
}

TEST_P(DeviceDataTest, PacksWhatMakeBatchMakes) {
  const auto words = tiny_data(50, 1);
  const data::MemoryDataset two = pairs();
  for (const data::Dataset* data :
       {static_cast<const data::Dataset*>(words.get()),
        static_cast<const data::Dataset*>(&two)}) {
    for (const bool cls : {false, true}) {
      for (const int64_t max_length : {0, 4}) {
        const data::BatchOptions form{.cls = cls, .max_length = max_length};
        const DeviceData there(*data, form, device());
        EXPECT_EQ(there.refuses_packed(), "");
        const Numbers indices = {3, 0, 5, 3};
        const data::Batch expected = make_batch(*data, indices, form);
        std::vector<const data::Sequences*> sides{&expected.first};
        if (expected.second) sides.push_back(&*expected.second);
        Numbers tokens(sides.size(), 0);
        for (const int64_t i : indices) {
          for (size_t s = 0; s < sides.size(); ++s) {
            tokens[s] += there.tokens(i, static_cast<int64_t>(s));
          }
        }
        // No filler, and one of 7
        for (const int64_t filler : {0, 7}) {
          Numbers sizes = tokens;
          for (int64_t& size : sizes) size += filler;
          const data::Batch actual = there.gather_packed(
              at::tensor(indices, at::kLong).to(device()), sizes, filler);
          ASSERT_EQ(actual.second.has_value(), sides.size() == 2);
          expect_same(actual.labels.cpu(), expected.labels, "labels");
          for (size_t s = 0; s < sides.size(); ++s) {
            const data::Sequences& side =
                s == 0 ? actual.first : *actual.second;
            EXPECT_EQ(side.ids.sizes(), at::IntArrayRef({1, sizes[s]}));
            expect_same(side.lengths.cpu(), sides[s]->lengths, "lengths");
            ASSERT_EQ(side.packed->samples(), std::ssize(indices));
            EXPECT_EQ(side.packed->longest, std::max(there.longest(), filler));
            for (int64_t i = 0; i < std::ssize(indices); ++i) {
              const int64_t length = sides[s]->lengths[i].item<int64_t>();
              expect_same(sequence(side, i),
                          sides[s]->ids[i].narrow(0, 0, length), "ids");
            }
            expect_same(
                sequence(side, std::ssize(indices)),
                at::full({filler}, data::pad_id(data->info()), at::kLong),
                "filler");
          }
        }
      }
    }
  }
}

TEST_P(DeviceDataTest, PicturesAreNotPacked) {
  EXPECT_NE(
      DeviceData(pictures(), {}, device()).refuses_packed().find("pictures"),
      std::string::npos);
}

TEST_P(DeviceDataTest, BlackPixelsMayBeLeftOut) {
  data::MemoryDataset data({.task = "dots",
                            .vocabulary = 256,
                            .classes = 2,
                            .height = 2,
                            .width = 3});
  for (const auto& ids : {std::vector<uint8_t>{0, 0, 7, 0, 255, 0},
                          {1, 2, 3, 4, 5, 6},
                          {0, 0, 0, 0, 0, 0}}) {
    data.add({.ids = ids, .label = 0});
  }
  for (const bool cls : {false, true}) {
    const data::BatchOptions form{.cls = cls};
    const DeviceData there(data, form, device(), /*black=*/false);
    EXPECT_TRUE(there.leaves_out_black());
    EXPECT_EQ(there.refuses_packed(), "");
    const int64_t one = cls ? 1 : 0;
    EXPECT_EQ(there.tokens(0, 0), 2 + one);
    EXPECT_EQ(there.tokens(1, 0), 6 + one);
    EXPECT_EQ(there.tokens(2, 0), 0 + one);
    EXPECT_EQ(there.length(0), 6 + one);
    EXPECT_NEAR(there.mean_tokens(), 8.0 / 3 + one, 1e-12);
    // Squares 4, 36, 0: 40 / 3 less the mean's 64 / 9
    EXPECT_NEAR(there.spread_of_tokens(), std::sqrt(56.0 / 9), 1e-12);
    const Numbers indices = {2, 0, 1};
    const data::Batch actual =
        there.gather_seen(at::tensor(indices, at::kLong).to(device()), {20, 9});
    expect_sequences(actual.first, make_batch(data, indices, form).first,
                     "pictures");
    EXPECT_EQ(actual.first.room->tokens, 20);
    EXPECT_EQ(actual.first.room->filler, 9);
  }
  // Of texts 0 is an id like others.
  EXPECT_FALSE(
      DeviceData(pairs(), {}, device(), /*black=*/false).leaves_out_black());
}

TEST_P(DeviceDataTest, ARowTooShortForItsSequencesIsCut) {
  const DeviceData there(pairs(), {}, device());
  const Numbers sizes{3, 20};
  const data::Batch batch = there.gather_packed(
      at::tensor(Numbers{1, 3, 2}, at::kLong).to(device()), sizes, 0);
  // Of 2, 4 and 3 tokens
  expect_same(batch.first.packed->starts.cpu(),
              at::tensor(Numbers{0, 2, 3, 3, 3}, at::kLong), "starts");
  expect_same(batch.first.ids.cpu(),
              at::tensor(Numbers{1, 1, 3}, at::kLong).view({1, 3}), "ids");
}

TEST_P(DeviceDataTest, MovesPicturesAsMakeBatchDoes) {
  for (const int64_t channels : {1, 3}) {
    const data::MemoryDataset data = pictures(channels);
    const DeviceData there(data, {}, device());
    const Numbers indices = {5, 1, 0, 2, 4, 3, 1};
    const uint64_t seed = 8;
    const int64_t position = 70;
    Numbers moves;
    for (int64_t i = 0; i < std::ssize(indices); ++i) {
      const data::Move move = data::draw_move(seed, position + i);
      moves.insert(moves.end(), {move.flip ? 1 : 0, move.down, move.right});
    }
    const data::Batch expected =
        make_batch(data, indices, {.augment = true}, seed, position);
    const data::Batch actual =
        there.gather(at::tensor(indices, at::kLong).to(device()), 63 * channels,
                     at::tensor(moves, at::kLong).view({-1, 3}).to(device()));
    expect_sequences(actual.first, expected.first, "pictures");
    EXPECT_TRUE(actual.first.full);
  }
}

TEST_P(DeviceDataTest, TheTableBlendsAsMakeBatchDoes) {
  TrainConfig config = tiny_config();
  config.data.mixup = 0.3;
  config.data.cutmix = 0.4;
  const data::MemoryDataset data = pictures(3);
  const DeviceData there(data, {}, device());
  StepTable table(config, there, device(), /*rows=*/5);
  data::DataOrder order(data.size(), config.batch, config.seed);
  for (const int64_t step : {0, 1, 8}) {
    table.turn_to(step);
    for (int64_t part = 0; part < config.accumulate; ++part) {
      const int64_t number = step * config.accumulate + part;
      const data::Batch expected =
          make_batch(data, order.batch(number), {.mixup = 0.3, .cutmix = 0.4},
                     config.seed, number * config.batch);
      expect_same(table.blends(part).cpu(), expected.blends,
                  "blends of step " + std::to_string(step));
    }
    table.advance();
  }
}

TEST_P(DeviceDataTest, TheTableHasTheOrderOfTheHost) {
  TrainConfig config = tiny_config();
  config.data.augment = true;
  config.steps = 100;
  const auto data = tiny_data(50, 1);
  const DeviceData there(*data, {}, device());
  StepTable table(config, there, device(), /*rows=*/7);
  data::DataOrder order(50, config.batch, config.seed);
  // On from the start, a second time, back, and on again past the table's end.
  for (const int64_t step : {0, 1, 2, 2, 30, 31, 5, 6, 7, 8, 9, 10, 11, 12}) {
    int64_t tokens = 0;
    const int64_t told = table.turn_to(step);
    for (int64_t part = 0; part < config.accumulate; ++part) {
      const int64_t number = step * config.accumulate + part;
      const Numbers expected = order.batch(number);
      expect_same(table.indices(part).cpu(), at::tensor(expected, at::kLong),
                  "samples of step " + std::to_string(step));
      Numbers moves;
      int64_t of_part = 0;
      for (int64_t i = 0; i < config.batch; ++i) {
        of_part += std::ssize((*data)[expected[i]].ids);
        const data::Move move =
            data::draw_move(config.seed, number * config.batch + i);
        moves.insert(moves.end(), {move.flip ? 1 : 0, move.down, move.right});
      }
      EXPECT_EQ(table.part_tokens()[part], of_part);
      tokens += of_part;
      expect_same(table.moves(part)->flatten().cpu(),
                  at::tensor(moves, at::kLong), "moves");
    }
    EXPECT_EQ(told, tokens);
    EXPECT_FLOAT_EQ(table.lr().item<float>(),
                    static_cast<float>(learning_rate(
                        config.schedule, config.optimizer.lr, 100, step)));
    table.advance();
  }
}

LUNA_EVERY_DEVICE(DeviceDataTest);

}  // namespace
}  // namespace luna::train
