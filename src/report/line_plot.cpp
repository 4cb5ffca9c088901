#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "luna/report/format.h"
#include "luna/report/plot.h"
#include "report/scale.h"

namespace luna::report {
namespace {

struct Frame {
  double left, right, top, bottom;  // edges of the plot inside the drawing
  double marks_top;                 // lines above, labels of marks below
  double font;
  bool narrow;
};

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = 0;
  void add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
};

double text_width(const std::string& text, double font) {
  return 0.57 * font * static_cast<double>(display_width(text));
}

double bold_width(const std::string& text, double font) {
  return 0.64 * font * static_cast<double>(display_width(text));
}

std::string tick_label(double value) {
  return value >= 10 ? grouped(std::llround(value))
                     : fmt::format("{:.3g}", value);
}

double mark_step(const Frame& frame) { return 1.3 * frame.font; }

std::string marker(int colour, double x, double y) {
  switch (colour % 4) {
    case 1:
      return fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.6\"", x, y);
    case 2:
      return fmt::format(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"6.4\" height=\"6.4\"",
          x - 3.2, y - 3.2);
    case 3:
      return fmt::format("<path d=\"M{:.1f} {:.1f}l4.2 7.4h-8.4z\"", x,
                         y - 4.6);
    default:
      return fmt::format(
          "<path d=\"M{:.1f} {:.1f}l4.4 4.4l-4.4 4.4l-4.4 -4.4z\"", x, y - 4.4);
  }
}

std::string x_axis(const LogLogPlot& plot, const Frame& frame,
                   const LogScale& x) {
  std::set<double> values;
  for (const Series& s : plot.series) {
    for (const Point& p : s.points) values.insert(p.x);
  }
  const auto label = [&](double value) {
    return frame.narrow ? short_length(value) : grouped(std::llround(value));
  };
  std::string out;
  double free_from = -std::numeric_limits<double>::infinity();
  for (const double value : values) {
    const double place = x(value);
    out += fmt::format(
        "<line class=\"grid\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" "
        "y2=\"{2:.1f}\"/>",
        place, frame.bottom, frame.bottom + 5);
    const double half = text_width(label(value), frame.font) / 2;
    if (place - half < free_from) continue;
    free_from = place + half + 6;
    out += fmt::format(
        "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>",
        place, frame.bottom + 6 + frame.font, label(value));
  }
  out += fmt::format(
      "<text class=\"axis\" x=\"{:.1f}\" y=\"{:.1f}\" "
      "text-anchor=\"middle\">{}</text>\n",
      (frame.left + frame.right) / 2, frame.bottom + 14 + 2.2 * frame.font,
      escape(plot.x_label));
  return out;
}

std::string y_axis(const LogLogPlot& plot, const Frame& frame,
                   const LogScale& y) {
  std::string out;
  for (const double value : y.decimal_ticks()) {
    const double place = y(value);
    out += fmt::format(
        "<line class=\"grid\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" "
        "y2=\"{:.1f}\"/><text x=\"{:.1f}\" y=\"{:.1f}\" "
        "text-anchor=\"end\">{}</text>",
        frame.left, frame.right, place, place, frame.left - 7,
        place + 0.35 * frame.font, tick_label(value));
  }
  out += fmt::format("<text class=\"axis\" x=\"2\" y=\"{:.1f}\">{}</text>\n",
                     frame.font + 1, escape(plot.y_label));
  return out;
}

std::string line(const Series& series, const LogScale& x, const LogScale& y) {
  std::string path, spread, points;
  for (const Point& p : series.points) {
    path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", x(p.x),
                        y(p.y));
    if (std::abs(y(p.low) - y(p.high)) > 2) {
      spread += fmt::format(
          "<line class=\"spread\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" "
          "y1=\"{1:.1f}\" y2=\"{2:.1f}\"/>",
          x(p.x), y(p.low), y(p.high));
    }
    points += marker(series.colour, x(p.x), y(p.y)) +
              fmt::format("><title>{}, {}: {}</title>", escape(series.name),
                          short_number(p.x), short_number(p.y));
    const int shape = series.colour % 4;
    points += shape == 1 ? "</circle>" : shape == 2 ? "</rect>" : "</path>";
  }
  return fmt::format(
      "<g class=\"series c{}\"><path class=\"line{}\" d=\"{}\"/>{}{}</g>\n",
      series.colour, series.dashed ? " dashed" : "", path, spread, points);
}

// The names stand in a column right of the plot, each near its line's end and
// none upon another; a thin line leads to those that had to move or whose
// line ends early.
std::string names(const LogLogPlot& plot, const Frame& frame, const LogScale& x,
                  const LogScale& y) {
  struct Name {
    const Series* series;
    double from_x, from_y, place;
  };
  std::vector<Name> column;
  for (const Series& s : plot.series) {
    if (s.points.empty()) continue;
    const Point& last = s.points.back();
    column.push_back({&s, x(last.x), y(last.y), y(last.y)});
  }
  std::sort(column.begin(), column.end(),
            [](const Name& a, const Name& b) { return a.place < b.place; });
  const double step = 1.25 * frame.font;
  for (std::size_t i = 1; i < column.size(); ++i) {
    column[i].place = std::max(column[i].place, column[i - 1].place + step);
  }
  double limit = frame.bottom;
  for (auto name = column.rbegin(); name != column.rend(); ++name) {
    name->place = std::min(name->place, limit);
    limit = name->place - step;
  }
  std::string out;
  for (const Name& name : column) {
    const double start = frame.right + 16;
    const bool apart =
        name.from_x < frame.right - 1 || std::abs(name.place - name.from_y) > 3;
    if (apart) {
      out += fmt::format(
          "<line class=\"leader\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" "
          "y2=\"{:.1f}\"/>",
          name.from_x + 6, name.from_y, start - 3, name.place);
    }
    out += fmt::format(
        "<text class=\"name c{}\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n",
        name.series->colour, start, name.place + 0.35 * frame.font,
        escape(name.series->name));
  }
  return out;
}

// Labels are stacked below the lines, the leftmost mark's lowest, and each
// mark's line ends at its label: so none crosses another's.
std::string marks(const LogLogPlot& plot, const Frame& frame, const LogScale& x,
                  const LogScale& y) {
  std::vector<Mark> sorted = plot.marks;
  std::sort(sorted.begin(), sorted.end(),
            [](const Mark& a, const Mark& b) { return a.x < b.x; });
  std::string out;
  double height = frame.bottom - 7;
  for (const Mark& mark : sorted) {
    const double at_x = x(mark.x), at_y = y(mark.y);
    const bool to_left =
        at_x + bold_width(mark.label, frame.font) + 8 > frame.right;
    out += fmt::format(
        "<g class=\"mark c{0}\"><line x1=\"{1:.1f}\" x2=\"{1:.1f}\" "
        "y1=\"{2:.1f}\" y2=\"{3:.1f}\"/><circle cx=\"{1:.1f}\" "
        "cy=\"{4:.1f}\" r=\"7\"/><text x=\"{5:.1f}\" y=\"{3:.1f}\" "
        "text-anchor=\"{6}\">{7}</text></g>\n",
        mark.colour, at_x, at_y + 7, height, at_y,
        to_left ? at_x - 6 : at_x + 6, to_left ? "end" : "start",
        escape(mark.label));
    height -= mark_step(frame);
  }
  return out;
}

}  // namespace

std::string svg(const LogLogPlot& plot, Size size) {
  Frame frame;
  frame.narrow = size.width < 500;
  frame.font = frame.narrow ? 11.5 : 13;
  double widest_name = 0;
  Range xs, ys;
  for (const Series& s : plot.series) {
    widest_name = std::max(widest_name, bold_width(s.name, frame.font));
    for (const Point& p : s.points) {
      xs.add(p.x);
      ys.add(p.low);
      ys.add(p.high);
    }
  }
  if (xs.high == 0) return "";  // nothing was measured
  frame.right = size.width - widest_name - 22;
  frame.top = 2.4 * frame.font;
  frame.bottom = size.height - 20 - 2.2 * frame.font;
  frame.marks_top =
      frame.bottom -
      (plot.marks.empty()
           ? 0
           : mark_step(frame) * static_cast<double>(plot.marks.size()) + 10);
  const LogScale y(ys.low / 1.2, ys.high * 1.2, frame.marks_top, frame.top);
  double widest_tick = 0;
  for (const double tick : y.decimal_ticks()) {
    widest_tick =
        std::max(widest_tick, text_width(tick_label(tick), frame.font));
  }
  frame.left = widest_tick + 12;
  const LogScale x(xs.low, xs.high, frame.left + 8, frame.right - 4);

  std::string out = fmt::format(
      "<svg viewBox=\"0 0 {0:g} {1:g}\" width=\"{0:g}\" height=\"{1:g}\" "
      "role=\"img\" aria-label=\"{2}\" font-size=\"{3:g}\">\n",
      size.width, size.height, escape(plot.title), frame.font);
  out += y_axis(plot, frame, y) + x_axis(plot, frame, x);
  for (const Series& s : plot.series) out += line(s, x, y);
  out += marks(plot, frame, x, y) + names(plot, frame, x, y);
  return out + "</svg>\n";
}

}  // namespace luna::report
