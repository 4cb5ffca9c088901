#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "luna/report/format.h"
#include "luna/report/plot.h"
#include "report/svg.h"

namespace luna::report {
namespace {

double mark_step(const Frame& frame) { return 1.3 * frame.font; }

std::string path_of(const Series& series, const Scale& x, const Scale& y) {
  std::string path;
  for (const Point& p : series.points) {
    path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", x(p.x),
                        y(p.y));
  }
  return path;
}

std::string measured_points(const Series& series, const Scale& x,
                            const Scale& y) {
  std::string spread, points;
  for (const Point& p : series.points) {
    if (std::abs(y(p.low) - y(p.high)) > 2) {
      spread += fmt::format(
          "<line class=\"spread\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" "
          "y1=\"{1:.1f}\" y2=\"{2:.1f}\"/>",
          x(p.x), y(p.low), y(p.high));
    }
    points += marker(series.colour, x(p.x), y(p.y),
                     fmt::format("{}, {}: {}", series.name, short_number(p.x),
                                 short_number(p.y)));
  }
  return spread + points;
}

std::string band(const Series& series, const Scale& x, const Scale& y) {
  const bool spreads =
      std::any_of(series.points.begin(), series.points.end(),
                  [](const Point& p) { return p.high > p.low; });
  if (!spreads) return "";
  std::string path;
  for (const Point& p : series.points) {
    path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", x(p.x),
                        y(p.high));
  }
  for (auto p = series.points.rbegin(); p != series.points.rend(); ++p) {
    path += fmt::format("L{:.1f} {:.1f}", x(p->x), y(p->low));
  }
  return fmt::format("<path class=\"band\" d=\"{}z\"/>", path);
}

std::string line(const Series& series, bool points, const Scale& x,
                 const Scale& y) {
  const std::string curve =
      fmt::format("<path class=\"line{}\" d=\"{}\"/>",
                  series.dashed ? " dashed" : "", path_of(series, x, y));
  std::string marks;
  if (points) {
    marks = measured_points(series, x, y);
  } else if (!series.points.empty()) {
    const Point& last = series.points.back();
    marks = marker(series.colour, x(last.x), y(last.y),
                   fmt::format("{}, {}: {}", series.name, short_number(last.x),
                               short_number(last.y)));
  }
  return fmt::format("<g class=\"series c{}\">{}{}{}</g>\n", series.colour,
                     points ? "" : band(series, x, y), curve, marks);
}

// The names stand in a column right of the plot, each near its line's end and
// none upon another; a thin line leads to those that had to move or whose
// line ends early.
std::string names_at_ends(const LinePlot& plot, const Frame& frame,
                          const Scale& x, const Scale& y) {
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
        name.from_x < frame.right - 5 || std::abs(name.place - name.from_y) > 3;
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

// Rows of marker and name, for drawings too narrow for names at the ends.
struct Legend {
  std::string drawing;
  double height = 0;
};

Legend legend_below(const LinePlot& plot, double width, double font) {
  Legend legend;
  const double row = 1.6 * font;
  double x = 4;
  legend.height = row;
  for (const Series& s : plot.series) {
    if (s.points.empty()) continue;
    const double entry = 26 + bold_width(s.name, font) + 12;
    if (x > 4 && x + entry > width) {
      x = 4;
      legend.height += row;
    }
    const double y = legend.height - 0.5 * row;
    legend.drawing += fmt::format(
        "<g class=\"series c{0}\"><path class=\"line{1}\" d=\"M{2:.1f} "
        "{3:.1f}h18\"/>{4}<text class=\"name\" x=\"{5:.1f}\" "
        "y=\"{6:.1f}\">{7}</text></g>\n",
        s.colour, s.dashed ? " dashed" : "", x, y,
        marker(s.colour, x + 9, y, ""), x + 24, y + 0.35 * font,
        escape(s.name));
    x += entry;
  }
  return legend;
}

// Labels are stacked below the lines, the leftmost mark's lowest, and each
// mark's line ends at its label: so none crosses another's.
std::string marks(const LinePlot& plot, const Frame& frame, const Scale& x,
                  const Scale& y) {
  std::vector<Mark> sorted = plot.marks;
  std::sort(sorted.begin(), sorted.end(),
            [](const Mark& a, const Mark& b) { return a.x < b.x; });
  std::string out;
  double height = frame.bottom - 7;
  for (const Mark& mark : sorted) {
    const double at_x = x(mark.x), at_y = y(mark.y);
    const double wide = bold_width(mark.label, frame.font) + 8;
    // To the right of its line, else to the left, else as far left as it must.
    double label = at_x + 6;
    if (label + wide > frame.right) {
      label = std::max(4.0, at_x - wide);
    }
    out += fmt::format(
        "<g class=\"mark c{0}\"><line x1=\"{1:.1f}\" x2=\"{1:.1f}\" "
        "y1=\"{2:.1f}\" y2=\"{3:.1f}\"/><circle cx=\"{1:.1f}\" "
        "cy=\"{4:.1f}\" r=\"7\"/><text x=\"{5:.1f}\" y=\"{3:.1f}\" "
        "text-anchor=\"start\">{6}</text></g>\n",
        mark.colour, at_x, at_y + 7, height, at_y, label, escape(mark.label));
    height -= mark_step(frame);
  }
  return out;
}

}  // namespace

std::string svg(const LinePlot& plot, Size size) {
  Frame frame;
  frame.narrow = size.width < 500;
  frame.font = frame.narrow ? 11.5 : 13;
  double widest_name = 0;
  Range xs, ys;
  std::set<double> measured;
  for (const Series& s : plot.series) {
    widest_name = std::max(widest_name, bold_width(s.name, frame.font));
    for (const Point& p : s.points) {
      xs.add(p.x);
      ys.add(p.low);
      ys.add(p.high);
      measured.insert(p.x);
    }
  }
  if (xs.empty()) return "";  // nothing was measured
  const bool names_below = widest_name > 0.36 * size.width;
  const Legend legend =
      names_below ? legend_below(plot, size.width, frame.font) : Legend{};
  // Half of the last tick's number stands beyond the plot.
  frame.right = size.width - (names_below ? 2 * frame.font : widest_name + 22);
  frame.top = 2.4 * frame.font;
  frame.bottom = size.height - 20 - 2.2 * frame.font;
  const double marks_top =
      frame.bottom -
      (plot.marks.empty()
           ? 0
           : mark_step(frame) * static_cast<double>(plot.marks.size()) + 10);
  const Scale y =
      scale_of(plot.y, shown(plot.y, ys, 0.05), marks_top, frame.top);
  frame.left = left_edge(y, frame.font);
  const Scale x =
      scale_of(plot.x, shown(plot.x, xs, 0), frame.left + 8, frame.right - 4);
  const std::vector<double> ticks =
      plot.x.ticks_at_points
          ? std::vector<double>(measured.begin(), measured.end())
          : x.ticks(frame.narrow ? 4 : 6);

  std::string out = open_svg(
      {size.width, size.height + legend.height + (names_below ? 8 : 0)},
      plot.title, frame.font);
  out += y_axis(plot.y, frame, y) + x_axis(plot.x, frame, x, ticks);
  for (const Series& s : plot.series) out += line(s, plot.points, x, y);
  out += marks(plot, frame, x, y);
  out += names_below
             ? fmt::format("<g transform=\"translate(0 {:.1f})\">{}</g>\n",
                           size.height + 6, legend.drawing)
             : names_at_ends(plot, frame, x, y);
  return out + "</svg>\n";
}

}  // namespace luna::report
