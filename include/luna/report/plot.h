// Plots as inline SVG. Colours are the classes c0 ... c7 of the page's style
// (report/page.h), so that one drawing serves a light and a dark page.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace luna::report {

constexpr int kColours = 8;

struct Point {
  double x, y;
  double low, high;  ///< spread of y; equal to y where there is none
};

struct Series {
  std::string name;
  int colour = 0;  ///< 0 is the quiet colour of what others are held against
  bool dashed = false;
  std::vector<Point> points;
};

/// A ring on the plot with a line down to the x axis.
struct Mark {
  double x, y;
  std::string label;
  int colour = 0;
};

struct Axis {
  std::string label{};  ///< what and in which unit
  bool logarithmic = false;
  bool ticks_at_points = false;         ///< at the values that were measured
  std::optional<double> low{}, high{};  ///< instead of the data's
};

/// Lines, each named at its right end, or below the plot where the names
/// would leave too little room.
struct LinePlot {
  std::string title{};  ///< for those who hear the page
  Axis x{}, y{};
  std::vector<Series> series{};
  std::vector<Mark> marks{};
  /// Measured points with their spread as bars; else a curve in a band.
  bool points = true;
};

struct Bar {
  std::string label;
  double value;
  std::string text;  ///< written at the bar's end
  int colour = 0;
};

/// Horizontal bars that start at 1 on a logarithmic axis: above to the right,
/// below to the left. Bars of equal label stand together.
struct RatioBars {
  std::string title;
  std::string x_label;
  std::vector<Bar> bars;
};

struct Bubble {
  std::string name;
  double x, y;
  double area;
  std::string text;  ///< under the name
  int colour = 0;
};

/// Circles whose areas are a third number.
struct BubbleChart {
  std::string title{};
  Axis x{}, y{};
  std::vector<Bubble> bubbles{};
};

struct Panel {
  std::string title;
  std::vector<Series> series;
};

/// Small curves side by side on the same axes.
struct SmallMultiples {
  std::string title{};
  Axis x{}, y{};
  std::vector<Panel> panels{};
};

struct Size {
  double width, height;
};

/// Empty where there is nothing to draw.
std::string svg(const LinePlot& plot, Size size);
std::string svg(const RatioBars& bars, double width);
std::string svg(const BubbleChart& chart, Size size);
/// A drawing a panel.
std::vector<std::string> svg(const SmallMultiples& multiples, Size panel);

/// A drawing as a file of its own, in light and dark.
std::string standalone(const std::string& drawing);

}  // namespace luna::report
