#include "luna/bench/decode_bench.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "luna/report/decode_report.h"

namespace luna::bench {
namespace {

DecodeSettings small() {
  return {.positions = {3, 200},
          .batches = {1, 2},
          .layers = 1,
          .width = 16,
          .ffn = 16,
          .heads = 2,
          .memory_length = 4,
          .vocabulary = 20,
          .source = 5,
          .repeat = 2,
          .steps = 2};
}

TEST(DecodeBench, StatesGrowWithThePositionForSoftmaxAlone) {
  const DecodeResults results = decode_bench(small());
  // Five mechanisms can decode; two batches, two positions.
  ASSERT_EQ(results.rows.size(), 20u);
  std::map<std::string, std::map<int64_t, int64_t>> bytes;
  for (const DecodeRow& row : results.rows) {
    EXPECT_EQ(row.skipped, "");
    EXPECT_FALSE(row.graph);
    EXPECT_EQ(row.time.runs, 2);
    EXPECT_GT(row.time.median, 0);
    auto [found, is_new] =
        bytes[row.attention].emplace(row.position, row.state_bytes);
    // Of a sentence, whatever the batch.
    EXPECT_EQ(found->second, row.state_bytes) << row.attention;
  }
  for (const auto& [attention, by_position] : bytes) {
    const int64_t grown = by_position.at(200) - by_position.at(3);
    // Keys and values of 197 tokens of width 16, in float32.
    EXPECT_EQ(grown, attention == "softmax" ? 197 * 16 * 2 * 4 : 0)
        << attention;
  }
}

TEST(DecodeBench, LargeCachesAreLeftOutAndSaid) {
  DecodeSettings settings = small();
  settings.attentions = {"softmax", "linear"};
  settings.cache_gib = 1e-5;  // 10,737 bytes: not 200 tokens' 25,600
  const DecodeResults results = decode_bench(settings);
  for (const DecodeRow& row : results.rows) {
    EXPECT_EQ(row.skipped.empty(),
              row.attention == "linear" || row.position == 3);
  }
  const auto json = nlohmann::json::parse(to_json(results));
  ASSERT_EQ(json["rows"].size(), results.rows.size());
  EXPECT_TRUE(json["rows"][1].contains("skipped"));
  EXPECT_FALSE(json["rows"][1].contains("seconds"));
  EXPECT_EQ(json["rows"][0]["seconds"], results.rows[0].time.median);
  // What was saved is what is shown.
  const auto again = decode_results_from_json(to_json(results), "saved");
  EXPECT_EQ(report::decode_text(again), report::decode_text(results));
  EXPECT_EQ(to_json(again), to_json(results));
  EXPECT_THROW(decode_results_from_json("{}", "x"), c10::ValueError);
  const std::string text = report::decode_text(results);
  EXPECT_NE(text.find("a cache of 0.0 GiB"), std::string::npos);
  // softmax's one point of the largest batch, and linear's two.
  const auto plot = report::decode_plot(results);
  ASSERT_EQ(plot.series.size(), 2u);
  EXPECT_EQ(plot.series[0].points.size(), 1u);
  EXPECT_EQ(plot.series[1].points.size(), 2u);
}

}  // namespace
}  // namespace luna::bench
