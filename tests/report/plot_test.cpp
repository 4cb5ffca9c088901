#include "luna/report/plot.h"

#include <gtest/gtest.h>

#include <regex>

#include "report/scale.h"
#include "report/svg.h"

namespace luna::report {
namespace {

std::vector<std::string> matches(const std::string& text,
                                 const std::string& pattern) {
  const std::regex regex(pattern);
  std::vector<std::string> found;
  for (std::sregex_iterator it(text.begin(), text.end(), regex), end; it != end;
       ++it) {
    found.push_back((*it)[1]);
  }
  return found;
}

LinePlot two_lines() {
  LinePlot plot;
  plot.title = "a title";
  plot.x = {"length", true, true, {}, {}};
  plot.y = {"time, ms", true, false, {}, {}};
  plot.series = {
      {"softmax", 0, false, {{128, 1, 1, 1}, {1024, 8, 8, 8}}},
      {"other", 1, true, {{128, 2, 2, 2}, {1024, 2, 2, 2}}},
  };
  plot.marks = {{256, 2, "from n = 256", 1}};
  return plot;
}

TEST(Scale, PlacesDecadesEvenly) {
  const Scale scale = Scale::logarithmic(1, 100, 0, 200);
  EXPECT_DOUBLE_EQ(scale(1), 0);
  EXPECT_DOUBLE_EQ(scale(10), 100);
  EXPECT_DOUBLE_EQ(scale(100), 200);
}

TEST(Scale, TicksAreRoundAndInside) {
  EXPECT_EQ(Scale::logarithmic(1.5, 30, 0, 1).ticks(),
            (std::vector<double>{2, 5, 10, 20}));
  EXPECT_EQ(Scale::logarithmic(0.5, 20000, 0, 1).ticks(),
            (std::vector<double>{1, 10, 100, 1000, 10000}));
}

TEST(Scale, SmallRangesStillHaveTicks) {
  EXPECT_EQ(Scale::logarithmic(55, 120, 0, 1).ticks(),
            (std::vector<double>{60, 80, 100}));
  EXPECT_GE(Scale::logarithmic(100, 118, 0, 1).ticks().size(), 2u);
}

TEST(LinePlot, TheLastTicksNumberIsInsideWhereverTheNamesAre) {
  for (const char* name : {"short", "a name that leaves no room at the side"}) {
    LinePlot plot;
    plot.x = {.label = "optimizer steps"};
    plot.series = {{name, 1, false, {{0, 1, 1, 1}, {60000, 2, 2, 2}}}};
    constexpr double kWidth = 412, kFont = 11.5;
    const std::string drawing = svg(plot, {kWidth, 300});
    const auto places =
        matches(drawing, "<text[^>]* x=\"([0-9.]+)\"[^>]*>60,000<");
    ASSERT_EQ(places.size(), 1u) << drawing;
    EXPECT_LE(std::stod(places[0]) + text_width("60,000", kFont) / 2, kWidth)
        << name;
  }
}

TEST(LinePlot, EqualStepsOnLogAxesAreEqualDistances) {
  const std::string drawing = svg(two_lines(), {800, 400});
  const auto paths = matches(drawing, "class=\"line[^\"]*\" d=\"([^\"]*)\"");
  ASSERT_EQ(paths.size(), 2u);
  double x0, y0, x1, y1;
  ASSERT_EQ(
      std::sscanf(paths[1].c_str(), "M%lf %lfL%lf %lf", &x0, &y0, &x1, &y1), 4);
  EXPECT_LT(x0, x1);
  EXPECT_DOUBLE_EQ(y0, y1);  // the same time at both lengths
  double top;
  ASSERT_EQ(
      std::sscanf(paths[0].c_str(), "M%lf %lfL%lf %lf", &x0, &y0, &x1, &top),
      4);
  // 1, 2 and 8 ms: a factor of 2 is a third of a factor of 8.
  EXPECT_NEAR((y0 - y1) / (y0 - top), 1.0 / 3, 0.02);
  // 256 lies a third of the way from 128 to 1,024.
  const auto ring = matches(drawing, "<circle cx=\"([^\"]*)\"[^>]* r=\"7\"");
  ASSERT_EQ(ring.size(), 1u);
  EXPECT_NEAR((std::stod(ring[0]) - x0) / (x1 - x0), 1.0 / 3, 0.01);
}

TEST(LinePlot, NamesAxesAndLines) {
  const std::string drawing = svg(two_lines(), {800, 400});
  for (const char* text : {">softmax<", ">other<", ">length<", ">time, ms<",
                           ">from n = 256<", ">1,024<"}) {
    EXPECT_NE(drawing.find(text), std::string::npos) << text;
  }
}

TEST(LinePlot, NamesNeverOverlap) {
  LinePlot plot = two_lines();
  plot.series.clear();
  for (int i = 0; i < 7; ++i) {
    plot.series.push_back({"line " + std::to_string(i),
                           i,
                           false,
                           {{128, 5, 5, 5}, {256, 5, 5, 5}}});
  }
  const std::string drawing = svg(plot, {800, 400});
  const auto places =
      matches(drawing, "class=\"name c[0-9]\" x=\"[^\"]*\" y=\"([^\"]*)\"");
  ASSERT_EQ(places.size(), 7u);
  for (std::size_t i = 1; i < places.size(); ++i) {
    EXPECT_GE(std::stod(places[i]) - std::stod(places[i - 1]), 13) << i;
  }
}

TEST(LinePlot, IsEmptyWithoutPoints) {
  EXPECT_EQ(svg(LinePlot{}, {800, 400}), "");
}

TEST(RatioBars, GrowToTheRightAboveOneAndToTheLeftBelow) {
  const std::string drawing =
      svg(RatioBars{"t", "speed", {{"a", 10, "10×", 1}, {"b", 0.1, "0.1×", 2}}},
          800);
  const auto from = matches(drawing, "class=\"bar c[12]\" x=\"([^\"]*)\"");
  const auto length = matches(drawing, "class=\"bar[^>]* width=\"([^\"]*)\"");
  ASSERT_EQ(from.size(), 2u);
  EXPECT_NEAR(std::stod(length[0]), std::stod(length[1]), 0.2);
  EXPECT_NEAR(std::stod(from[1]) + std::stod(length[1]), std::stod(from[0]),
              0.2);  // both start at 1
}

TEST(RatioBars, LongLabelsLeaveRoomForTheBars) {
  const std::string label(60, 'm');
  const std::string drawing =
      svg(RatioBars{"t", "speed", {{label, 10, "10.00× memory", 1}}}, 800);
  const auto length = matches(drawing, "class=\"bar[^>]* width=\"([^\"]*)\"");
  ASSERT_EQ(length.size(), 1u);
  EXPECT_GT(std::stod(length[0]), 300);
}

TEST(Scale, LinearTicksAreRoundAndInside) {
  const Scale scale = Scale::linear(-4, 4, 0, 80);
  EXPECT_DOUBLE_EQ(scale(-4), 0);
  EXPECT_DOUBLE_EQ(scale(1), 50);
  EXPECT_EQ(scale.ticks(4), (std::vector<double>{-4, -2, 0, 2, 4}));
  EXPECT_EQ(Scale::linear(0, 2000, 0, 1).ticks(4),
            (std::vector<double>{0, 500, 1000, 1500, 2000}));
}

TEST(TickLabel, IsTheTicksOwnNumber) {
  EXPECT_EQ(tick_label(100.5), "100.5");
  EXPECT_EQ(tick_label(0.1 + 0.2), "0.3");
  EXPECT_EQ(tick_label(2000), "2,000");
}

TEST(LinePlot, LinearAxesKeepDifferences) {
  LinePlot plot;
  plot.points = false;
  plot.series = {{"a", 1, false, {{0, 1, 1, 1}, {10, 2, 2, 2}, {30, 4, 3, 5}}}};
  const std::string drawing = svg(plot, {800, 400});
  const auto paths = matches(drawing, "class=\"line\" d=\"([^\"]*)\"");
  ASSERT_EQ(paths.size(), 1u);
  double x[3], y[3];
  ASSERT_EQ(std::sscanf(paths[0].c_str(), "M%lf %lfL%lf %lfL%lf %lf", &x[0],
                        &y[0], &x[1], &y[1], &x[2], &y[2]),
            6);
  EXPECT_NEAR((x[1] - x[0]) / (x[2] - x[0]), 1.0 / 3, 0.001);
  EXPECT_NEAR((y[1] - y[0]) / (y[2] - y[0]), 1.0 / 3, 0.002);
  EXPECT_EQ(matches(drawing, "(class=\"band\")").size(), 1u);
}

TEST(LinePlot, LongNamesStandBelow) {
  LinePlot plot = two_lines();
  plot.series[0].name = "a mechanism with a very long name indeed";
  const std::string drawing = svg(plot, {358, 330});
  EXPECT_NE(drawing.find(plot.series[0].name), std::string::npos);
  const auto heights = matches(drawing, "viewBox=\"0 0 358 ([^\"]*)\"");
  ASSERT_EQ(heights.size(), 1u);
  EXPECT_GT(std::stod(heights[0]), 330);
}

TEST(BubbleChart, AreasAreTheThirdNumber) {
  BubbleChart chart;
  chart.x.logarithmic = true;
  chart.bubbles = {{"a", 1, 50, 1.0, "4 GiB", 0},
                   {"b", 4, 60, 0.25, "1 GiB", 1}};
  const std::string drawing = svg(chart, {800, 400});
  const auto radii = matches(drawing, "class=\"bubble[^>]* r=\"([^\"]*)\"");
  ASSERT_EQ(radii.size(), 2u);
  EXPECT_NEAR(std::stod(radii[1]) / std::stod(radii[0]), 0.5, 0.01);
  EXPECT_EQ(svg(BubbleChart{}, {800, 400}), "");
}

TEST(SmallMultiples, ShareOneScale) {
  SmallMultiples multiples;
  multiples.panels = {{"low", {{"s", 1, false, {{0, 0, 0, 0}, {1, 1, 1, 1}}}}},
                      {"high", {{"s", 1, true, {{0, 0, 0, 0}, {1, 2, 2, 2}}}}}};
  const auto drawings = svg(multiples, {200, 140});
  ASSERT_EQ(drawings.size(), 2u);
  double x, from[2], to[2];
  for (int i = 0; i < 2; ++i) {
    const auto paths = matches(drawings[i], " d=\"(M[^\"]*)\"");
    ASSERT_EQ(paths.size(), 1u);
    ASSERT_EQ(std::sscanf(paths[0].c_str(), "M%lf %lfL%lf %lf", &x, &from[i],
                          &x, &to[i]),
              4);
  }
  EXPECT_EQ(from[0], from[1]);
  EXPECT_NEAR((from[0] - to[0]) / (from[1] - to[1]), 0.5, 0.01);
}

TEST(Standalone, CarriesItsStyleAndItsNamespace) {
  const std::string file = standalone(svg(two_lines(), {800, 400}));
  EXPECT_TRUE(file.starts_with("<svg xmlns="));
  EXPECT_NE(file.find("prefers-color-scheme: dark"), std::string::npos);
}

}  // namespace
}  // namespace luna::report
