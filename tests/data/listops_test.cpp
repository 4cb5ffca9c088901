#include <gtest/gtest.h>
#include <luna/data/listops.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <stdexcept>

#include "data/listops_expression.h"
#include "support/errors.h"
#include "support/listops_evaluator.h"

namespace luna::data {
namespace {

using luna::testing::expect_error;
using luna::testing::ListOpsReading;
using luna::testing::read_listops;

std::vector<std::string> texts(const Dataset& data) {
  std::vector<std::string> all;
  for (int64_t i = 0; i < data.size(); ++i) {
    all.push_back(listops_text(data[i].ids));
  }
  return all;
}

// Expected values worked out by hand.
TEST(ListOpsEvaluator, WorksOutExpressions) {
  EXPECT_EQ(read_listops("7").value, 7);
  EXPECT_EQ(read_listops("[MAX 4 3 [MIN 2 3 ] 1 0 ]").value, 4);
  EXPECT_EQ(read_listops("[MAX 2 9 [MIN 4 7 ] 0 ]").value, 9);
  EXPECT_EQ(read_listops("[MED 5 1 9 ]").value, 5);
  EXPECT_EQ(read_listops("[MED 1 2 ]").value, 1);  // 1.5, truncated
  EXPECT_EQ(read_listops("[MED 9 0 8 7 ]").value, 7);
  EXPECT_EQ(read_listops("[SM 9 9 9 [SM 4 4 ] ]").value, 5);
  const ListOpsReading reading = read_listops("[SM 1 [MIN 3 4 5 ] ]");
  EXPECT_EQ(reading.symbols, 8);
  EXPECT_EQ(reading.depth, 3);
  EXPECT_EQ(reading.least_args, 2);
  EXPECT_EQ(reading.most_args, 3);
  for (const char* bad : {"", "1 2", "]", "[MIN 1", "[MIN ]", "[SUM 1 2 ]",
                          "[MIN 1 2 ] 3", "12"}) {
    EXPECT_THROW(read_listops(bad), std::runtime_error) << bad;
  }
}

TEST(ListOps, LabelsAreTheValues) {
  const ListOpsOptions options;
  const auto data = generate_listops(options, 2000, 1);
  ASSERT_EQ(data->size(), 2000);
  EXPECT_EQ(data->info().task, "listops");
  EXPECT_EQ(data->info().vocabulary, 15);
  EXPECT_EQ(data->info().classes, 10);
  int64_t deepest = 0, most_args = 0;
  for (int64_t i = 0; i < data->size(); ++i) {
    const Sample sample = (*data)[i];
    const ListOpsReading reading = read_listops(listops_text(sample.ids));
    ASSERT_EQ(sample.label, reading.value) << "sample " << i;
    EXPECT_EQ(std::ssize(sample.ids), reading.symbols);
    EXPECT_GT(reading.symbols, 500);
    EXPECT_LT(reading.symbols, 2000);
    EXPECT_GE(reading.least_args, 2);
    deepest = std::max(deepest, reading.depth);
    most_args = std::max(most_args, reading.most_args);
  }
  EXPECT_EQ(deepest, 10);
  EXPECT_EQ(most_args, 10);
}

// Every length, down to lone digits, so that all operators meet few and many
// arguments.
TEST(ListOps, LabelsAreTheValuesOfShortOnesToo) {
  const ListOpsOptions options{
      .min_length = 0, .max_length = 60, .max_depth = 4, .max_args = 7};
  const auto data = generate_listops(options, 3000, 2);
  bool lone_digit = false;
  for (int64_t i = 0; i < data->size(); ++i) {
    const Sample sample = (*data)[i];
    const ListOpsReading reading = read_listops(listops_text(sample.ids));
    ASSERT_EQ(sample.label, reading.value) << listops_text(sample.ids);
    EXPECT_LT(reading.symbols, 60);
    EXPECT_LE(reading.depth, 4);
    EXPECT_LE(reading.most_args, 7);
    lone_digit = lone_digit || reading.symbols == 1;
  }
  EXPECT_TRUE(lone_digit);
}

// The published figures (shared/data's README) are rounded; beyond that a mean
// over n draws errs by less than four standard errors, both theirs and ours.
// Theirs are taken to be no larger than ours.
class Published {
 public:
  Published(double figure, double rounding)
      : low_(figure - rounding / 2), high_(figure + rounding / 2) {}
  void expect(double mean, double standard_error) const {
    const double slack = 4 * std::sqrt(2.0) * standard_error;
    EXPECT_GT(mean, low_ - slack);
    EXPECT_LT(mean, high_ + slack);
  }
  void expect_share(int64_t hits, int64_t of) const {
    const double share = static_cast<double>(hits) / static_cast<double>(of);
    expect(share, std::sqrt(share * (1 - share) / static_cast<double>(of)));
  }

 private:
  double low_, high_;
};

TEST(ListOps, MatchesPublishedStatistics) {
  const ListOpsOptions options;
  constexpr int64_t kCandidates = 250'000;
  std::vector<int64_t> lengths, labels(10);
  std::vector<uint8_t> ids;
  for (int64_t i = 0; i < kCandidates; ++i) {
    Random random(3, static_cast<uint64_t>(i));
    int64_t value = 0;
    if (!draw_listops(options, random, ids, value)) continue;
    if (std::ssize(ids) <= options.min_length) continue;
    lengths.push_back(std::ssize(ids));
    ++labels[value];
  }
  const auto kept = static_cast<int64_t>(lengths.size());
  Published(0.081, 0.001).expect_share(kept, kCandidates);
  double sum = 0, squares = 0;
  for (const int64_t length : lengths) {
    const auto x = static_cast<double>(length);
    sum += x;
    squares += x * x;
  }
  const auto n = static_cast<double>(kept);
  const double mean = sum / n;
  Published(1048, 1).expect(mean, std::sqrt((squares / n - mean * mean) / n));
  // The median is 968 when half of the lengths are below it.
  const int64_t below = std::count_if(lengths.begin(), lengths.end(),
                                      [](int64_t x) { return x < 968; });
  Published(0.5, 0.002).expect_share(below, kept);
  Published(0.169, 0.001).expect_share(labels[0], kept);
  Published(0.168, 0.001).expect_share(labels[9], kept);
}

TEST(ListOps, DependsOnTheSeedAndNotOnThreads) {
  const ListOpsOptions options{.min_length = 10, .max_length = 100};
  const auto one = generate_listops(options, 3000, 5, {}, 1);
  const auto many = generate_listops(options, 3000, 5, {}, 7);
  EXPECT_EQ(texts(*one), texts(*many));
  // A smaller set is the beginning of a larger one.
  const auto few = texts(*generate_listops(options, 100, 5));
  const auto all = texts(*one);
  EXPECT_TRUE(std::equal(few.begin(), few.end(), all.begin()));
  EXPECT_NE(few, texts(*generate_listops(options, 100, 6)));
}

TEST(ListOps, DropsDuplicates) {
  // There are ten digits and 4 * 10^2 lists of two digits.
  const ListOpsOptions options{
      .min_length = 0, .max_length = 5, .max_depth = 2, .max_args = 2};
  const auto all = texts(*generate_listops(options, 410, 7));
  EXPECT_EQ(std::set<std::string>(all.begin(), all.end()).size(), 410U);
  expect_error<c10::ValueError>(
      [&] { generate_listops(options, 411, 7); },
      {"generate_listops: expected options that allow 411 distinct",
       "got 410"});
}

TEST(ListOps, ReportsProgressAndStops) {
  std::vector<int64_t> done;
  generate_listops({}, 20'000, 1, [&](int64_t now, int64_t total) {
    EXPECT_EQ(total, 20'000);
    done.push_back(now);
  });
  EXPECT_GT(done.size(), 1U);
  EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
  EXPECT_EQ(done.back(), 20'000);
  EXPECT_THROW(generate_listops(
                   {}, 20'000, 1,
                   [](int64_t, int64_t) { throw std::runtime_error("stop"); }),
               std::runtime_error);
}

TEST(ListOps, RefusesWrongOptions) {
  using Error = c10::ValueError;
  const auto refuse = [](ListOpsOptions options, int64_t samples,
                         const std::vector<std::string>& parts) {
    expect_error<Error>([&] { generate_listops(options, samples, 1); }, parts);
  };
  refuse({}, -1, {"generate_listops: expected samples", "got -1"});
  refuse({.max_args = 1}, 1, {"generate_listops: expected max_args", "got 1"});
  refuse({.max_depth = 0}, 1, {"max_depth", "got 0"});
  refuse({.min_length = 500, .max_length = 501}, 1,
         {"max_length of at least min_length + 2", "got min_length 500"});
  // At most 2 + 10 * (2 + 10) = 122 symbols.
  refuse({.max_depth = 3}, 1, {"the longest has 122 symbols", "got 500"});
  EXPECT_EQ(generate_listops({}, 0, 1)->size(), 0);
}

TEST(ListOps, TextAndIds) {
  const std::vector<uint8_t> ids = {11, 4, 3, 10, 2, 3, 14, 1, 0, 14};
  EXPECT_EQ(listops_text(ids), "[MAX 4 3 [MIN 2 3 ] 1 0 ]");
  EXPECT_EQ(listops_ids("[MAX 4 3 [MIN 2 3 ] 1 0 ]"), ids);
  EXPECT_EQ(listops_ids("( ( ( [MED 7 ) 8 ) ] )\n"),
            (std::vector<uint8_t>{12, 7, 8, 14}));
  EXPECT_EQ(listops_ids("[SM  0\t9 ]"), (std::vector<uint8_t>{13, 0, 9, 14}));
  EXPECT_TRUE(listops_ids(" ").empty());
  expect_error<c10::ValueError>(
      [] { listops_ids("[MAX 4 [SUM 2"); },
      {"listops_ids: expected", "character 7", "got [SUM"});
  const std::vector<uint8_t> wrong = {1, 15};
  expect_error<c10::ValueError>(
      [&] { listops_text(wrong); },
      {"listops_text: expected ids below 15", "got 15"});
}

}  // namespace
}  // namespace luna::data
