// Plots as inline SVG. Colours are the classes c0 ... c7 of the page's style
// (report/page.h), so that one drawing serves a light and a dark page.
#pragma once

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

/// Lines on two logarithmic axes, each line named at its right end.
struct LogLogPlot {
  std::string title;  ///< for those who hear the page
  std::string x_label, y_label;
  std::vector<Series> series;
  std::vector<Mark> marks;
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

struct Size {
  double width, height;
};

std::string svg(const LogLogPlot& plot, Size size);
std::string svg(const RatioBars& bars, double width);

/// A drawing as a file of its own, in light and dark.
std::string standalone(const std::string& drawing);

}  // namespace luna::report
