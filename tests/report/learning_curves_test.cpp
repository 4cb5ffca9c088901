#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "report/run_folders.h"

namespace luna::report::testing {
namespace {

/// Of the only chart of Image.
std::vector<Series> loss_curves(const RunReport& report) {
  const auto charts = curve_charts(report, "image");
  EXPECT_EQ(charts.size(), 1u);
  return loss_plot(report, charts.at(0)).series;
}

TEST(LearningCurves, AreMeansInABandOfTheSeeds) {
  RunReport report =
      report_of({recipe("linear", 0.5, 1), recipe("linear", 0.5, 2)});
  report.runs[1].train[200].loss = 3.5;  // the other has 1.5
  const std::vector<Series> series = loss_curves(report);
  ASSERT_EQ(series.size(), 1u);
  ASSERT_EQ(series[0].points.size(), 4u);
  const Point& point = series[0].points[1];
  EXPECT_EQ(point.x, 200);
  EXPECT_EQ(point.y, 2.5);
  EXPECT_EQ(point.low, 1.5);
  EXPECT_EQ(point.high, 3.5);
  EXPECT_TRUE(curve_charts(report, "text").empty());
}

TEST(LearningCurves, SeedsLoggedAtOtherStepsMakeNoZigzag) {
  RunReport report =
      report_of({recipe("linear", 0.5, 1), recipe("linear", 0.5, 2)});
  Curve &even = report.runs[0].train, &odd = report.runs[1].train;
  even.clear();
  odd.clear();
  for (int step = 0; step <= 40; step += 2) even[step].loss = 1 + step;
  for (int step = 1; step <= 21; step += 2) odd[step].loss = 11 + step;
  const std::vector<Point> points = loss_curves(report).at(0).points;
  EXPECT_EQ(points.size(), 32u);  // 21 even steps and 11 odd ones
  for (const Point& p : points) {
    const bool both = p.x >= 1 && p.x <= 21;
    EXPECT_DOUBLE_EQ(p.low, 1 + p.x);
    EXPECT_DOUBLE_EQ(p.high, (both ? 11 : 1) + p.x);
    EXPECT_DOUBLE_EQ(p.y, (both ? 6 : 1) + p.x);
  }
}

TEST(LearningCurves, LongOnesKeepTheirMeanAndFewPoints) {
  RunReport report = report_of({recipe("linear", 0.5)});
  Curve& curve = report.runs[0].train;
  curve.clear();
  for (int step = 1; step <= 10000; ++step) {
    curve[step].loss = step % 2 == 0 ? 1.0 : 3.0;
  }
  const std::vector<Point> points = loss_curves(report).at(0).points;
  EXPECT_LE(points.size(), 160u);
  EXPECT_GT(points.size(), 80u);
  for (const Point& p : points) EXPECT_NEAR(p.y, 2, 0.05);
}

/// Of universal attention with other numbers of projections.
void add_fifteen(std::vector<RunRecipe>& recipes) {
  for (int projections = 9; projections < 24; ++projections) {
    recipes.push_back(recipe("universal", 0.5));
    recipes.back().model["attention_options"] = {{"M", projections}};
  }
}

/// Every group is drawn, in no chart as another looks.
void expect_all_told_apart(const RunReport& report,
                           const std::vector<CurveChart>& charts) {
  std::set<std::size_t> drawn;
  for (const CurveChart& chart : charts) {
    std::set<std::pair<int, bool>> looks;
    for (const CurveChart::Line& line : chart.lines) {
      drawn.insert(line.group);
      looks.insert({line.colour, line.dashed});
    }
    EXPECT_EQ(looks.size(), chart.lines.size()) << chart.title;
  }
  EXPECT_EQ(drawn.size(), report.groups.size());
}

TEST(LearningCurves, ManyStandInSeveralPicturesAndCanBeToldApart) {
  std::vector<RunRecipe> recipes = {
      recipe("softmax", 0.4), recipe("universal", 0.4), recipe("linear", 0.4)};
  add_fifteen(recipes);
  const RunReport report = report_of(recipes);
  const auto charts = curve_charts(report, "image");
  ASSERT_EQ(charts.size(), 4u);  // the papers' three; 15 others, six at most
  EXPECT_EQ(charts[0].title, "image, beside the papers");
  EXPECT_EQ(charts[0].lines.size(), 3u);
  EXPECT_EQ(charts[3].title, "image, others, 3 of 3");
  expect_all_told_apart(report, charts);
  // What they are held against comes first.
  for (std::size_t k = 1; k < charts.size(); ++k) {
    const RunGroup& first = report.groups[charts[k].lines[0].group];
    EXPECT_EQ(first.title, "universal") << charts[k].title;
    EXPECT_LE(charts[k].lines.size(), 7u);
  }
}

TEST(LearningCurves, SoftmaxIsInEachPictureWhereNoPaperHasARow) {
  std::vector<RunRecipe> recipes = {recipe("softmax", 0.4)};
  add_fifteen(recipes);
  for (RunRecipe& r : recipes) r.task = "needles";
  const RunReport report = report_of(recipes);
  const auto charts = curve_charts(report, "needles");
  ASSERT_EQ(charts.size(), 3u);
  for (size_t k = 0; k < charts.size(); ++k) {
    EXPECT_EQ(charts[k].title, "needles, " + std::to_string(k + 1) + " of 3");
    const CurveChart::Line& first = charts[k].lines.at(0);
    EXPECT_EQ(report.groups[first.group].title, "softmax");
    EXPECT_EQ(first.colour, report.groups[first.group].colour);
  }
  expect_all_told_apart(report, charts);
}

}  // namespace
}  // namespace luna::report::testing
