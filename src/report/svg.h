// What all drawings share: widths of text, frames, axes, markers.
#pragma once

#include <limits>
#include <string>

#include "luna/report/plot.h"
#include "report/scale.h"

namespace luna::report {

/// A guess of the width of text, a little too wide rather than too narrow.
double text_width(const std::string& text, double font);
double bold_width(const std::string& text, double font);

/// Edges of the plot inside the drawing.
struct Frame {
  double left, right, top, bottom;
  double font;
  bool narrow;
};

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  void add(double value);
  bool empty() const { return low > high; }
};

/// The range that an axis shows: the axis' own limits, else the data's,
/// widened by a share of it.
Range shown(const Axis& axis, Range data, double margin);
Scale scale_of(const Axis& axis, const Range& range, double from, double to);

/// "12,000", "0.25": a value at an axis.
std::string tick_label(double value);

std::string open_svg(Size size, const std::string& title, double font);
/// Grid lines, values, and the label above the axis.
std::string y_axis(const Axis& axis, const Frame& frame, const Scale& y);
/// Ticks at `values`, as many labels as fit, and the label below.
std::string x_axis(const Axis& axis, const Frame& frame, const Scale& x,
                   const std::vector<double>& values);
/// The least left edge that leaves room for y's values.
double left_edge(const Scale& y, double font);

/// A point: its shape goes with its colour. `title` is shown on hovering.
std::string marker(int colour, double x, double y, const std::string& title);

}  // namespace luna::report
