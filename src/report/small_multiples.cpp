#include <fmt/format.h>

#include <algorithm>

#include "luna/report/format.h"
#include "luna/report/plot.h"
#include "report/svg.h"

namespace luna::report {
namespace {

std::string curve(const Series& series, const Scale& x, const Scale& y) {
  std::string path;
  for (const Point& p : series.points) {
    path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", x(p.x),
                        y(p.y));
  }
  return fmt::format(
      "<g class=\"series c{}\"><path class=\"line{}\" d=\"{}\"/></g>\n",
      series.colour, series.dashed ? " dashed" : "", path);
}

}  // namespace

std::vector<std::string> svg(const SmallMultiples& multiples, Size size) {
  Range xs, ys;
  for (const Panel& panel : multiples.panels) {
    for (const Series& s : panel.series) {
      for (const Point& p : s.points) {
        xs.add(p.x);
        ys.add(p.y);
      }
    }
  }
  if (xs.empty()) return {};
  Frame frame;
  frame.narrow = true;
  frame.font = 11;
  frame.right = size.width - 8;
  frame.top = 1.9 * frame.font;
  frame.bottom = size.height - 2.9 * frame.font;
  const Scale y = scale_of(multiples.y, shown(multiples.y, ys, 0.04),
                           frame.bottom, frame.top);
  const std::vector<double> y_ticks = y.ticks(3);
  double widest = 0;
  for (const double tick : y_ticks) {
    widest = std::max(widest, text_width(tick_label(tick), frame.font));
  }
  frame.left = widest + 8;
  const Scale x =
      scale_of(multiples.x, shown(multiples.x, xs, 0), frame.left, frame.right);
  std::vector<std::string> drawings;
  for (const Panel& panel : multiples.panels) {
    std::string out =
        open_svg(size, multiples.title + ", " + panel.title, frame.font);
    for (const double tick : y_ticks) {
      out += fmt::format(
          "<line class=\"grid\" x1=\"{0:.1f}\" x2=\"{1:.1f}\" y1=\"{2:.1f}\" "
          "y2=\"{2:.1f}\"/><text x=\"{3:.1f}\" y=\"{4:.1f}\" "
          "text-anchor=\"end\">{5}</text>",
          frame.left, frame.right, y(tick), frame.left - 5,
          y(tick) + 0.35 * frame.font, tick_label(tick));
    }
    for (const double tick : x.ticks(4)) {
      out += fmt::format(
          "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>",
          std::min(x(tick), frame.right - 3), frame.bottom + 4 + frame.font,
          tick_label(tick));
    }
    out += fmt::format(
        "<text class=\"axis\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>"
        "<text class=\"axis\" x=\"{:.1f}\" y=\"{:.1f}\" "
        "text-anchor=\"middle\">{}</text>\n",
        frame.left, frame.font, escape(panel.title),
        (frame.left + frame.right) / 2, size.height - 2,
        escape(multiples.x.label));
    for (const Series& s : panel.series) out += curve(s, x, y);
    drawings.push_back(out + "</svg>\n");
  }
  return drawings;
}

}  // namespace luna::report
