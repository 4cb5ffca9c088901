#include <gtest/gtest.h>
#include <luna/data/needles.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace luna::data {
namespace {

std::vector<uint8_t> all_ids(const Dataset& data) {
  std::vector<uint8_t> ids;
  for (int64_t i = 0; i < data.size(); ++i) {
    ids.insert(ids.end(), data[i].ids.begin(), data[i].ids.end());
  }
  return ids;
}

TEST(Needles, LabelIsTheLargestMarkedDigit) {
  const auto data = generate_needles({.length = 40, .needles = 5}, 2000, 7);
  ASSERT_EQ(data->size(), 2000);
  std::array<int64_t, 10> counts{};
  for (int64_t i = 0; i < data->size(); ++i) {
    const Sample sample = (*data)[i];
    ASSERT_EQ(sample.ids.size(), 40u);
    const auto marked = std::count_if(sample.ids.begin(), sample.ids.end(),
                                      [](uint8_t id) { return id >= 10; });
    EXPECT_GE(marked, 1);
    EXPECT_LE(marked, 5);
    const uint8_t largest =
        *std::max_element(sample.ids.begin(), sample.ids.end());
    EXPECT_EQ(sample.label, largest - 10);
    ++counts[sample.label];
  }
  // 200 of each, give or take five standard deviations.
  for (const int64_t count : counts) {
    EXPECT_NEAR(count, 200, 5 * std::sqrt(2000 * 0.1 * 0.9));
  }
}

TEST(Needles, DependsOnTheSeedAloneNotOnThreads) {
  const NeedlesOptions options;
  const auto one = generate_needles(options, 700, 3, {}, 1);
  const auto many = generate_needles(options, 700, 3, {}, 3);
  EXPECT_EQ(all_ids(*one), all_ids(*many));
  EXPECT_NE(all_ids(*one), all_ids(*generate_needles(options, 700, 4)));
}

TEST(Needles, MarksEveryDigitOfAShortRow) {
  const auto data = generate_needles({.length = 2, .needles = 9}, 50, 1);
  for (int64_t i = 0; i < data->size(); ++i) {
    EXPECT_EQ((*data)[i].ids.size(), 2u);
  }
}

TEST(Needles, RejectsOptionsOutOfRange) {
  EXPECT_ANY_THROW(generate_needles({.length = 0}, 1, 1));
  EXPECT_ANY_THROW(generate_needles({.needles = 0}, 1, 1));
  EXPECT_ANY_THROW(generate_needles({}, -1, 1));
}

}  // namespace
}  // namespace luna::data
