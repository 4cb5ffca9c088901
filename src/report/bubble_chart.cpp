#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "luna/report/format.h"
#include "luna/report/plot.h"
#include "report/svg.h"

namespace luna::report {
namespace {

struct Box {
  double left, top, right, bottom;
};

double overlap(const Box& a, const Box& b) {
  const double width = std::min(a.right, b.right) - std::max(a.left, b.left);
  const double height = std::min(a.bottom, b.bottom) - std::max(a.top, b.top);
  return std::max(width, 0.0) * std::max(height, 0.0);
}

struct Circle {
  const Bubble* bubble;
  double x, y, radius;
};

Box box_of(const Circle& c) {
  return {c.x - c.radius, c.y - c.radius, c.x + c.radius, c.y + c.radius};
}

/// Beside, above or below its circle: where it covers least of what is there.
Box place_label(const Circle& circle, Size label, const Frame& frame,
                const std::vector<Circle>& circles,
                const std::vector<Box>& labels) {
  const double gap = 5, w = label.width, h = label.height;
  const double x = circle.x, y = circle.y, r = circle.radius;
  const std::array<Box, 4> places = {
      Box{x + r + gap, y - h / 2, x + r + gap + w, y + h / 2},
      Box{x - r - gap - w, y - h / 2, x - r - gap, y + h / 2},
      Box{x - w / 2, y - r - gap - h, x + w / 2, y - r - gap},
      Box{x - w / 2, y + r + gap, x + w / 2, y + r + gap + h}};
  const Box inside = {0, frame.top - 4, frame.right + 8, frame.bottom};
  Box best = places[0];
  double least = std::numeric_limits<double>::infinity();
  for (const Box& place : places) {
    double cost = 4 * (w * h - overlap(place, inside));
    for (const Circle& other : circles) cost += overlap(place, box_of(other));
    for (const Box& other : labels) cost += 2 * overlap(place, other);
    if (cost < least - 1e-6) {
      least = cost;
      best = place;
    }
  }
  return best;
}

}  // namespace

std::string svg(const BubbleChart& chart, Size size) {
  if (chart.bubbles.empty()) return "";
  Frame frame;
  frame.narrow = size.width < 500;
  frame.font = frame.narrow ? 11.5 : 13;
  const double largest_radius = frame.narrow ? 22 : 36;
  frame.right = size.width - 12;
  frame.top = 2.4 * frame.font;
  frame.bottom = size.height - 20 - 2.2 * frame.font;
  Range xs, ys;
  double largest = 0;
  for (const Bubble& b : chart.bubbles) {
    xs.add(b.x);
    ys.add(b.y);
    largest = std::max(largest, b.area);
  }
  if (!chart.y.logarithmic && ys.high - ys.low < 1) {
    ys.add(ys.low - 0.5);
    ys.add(ys.high + 0.5);
  }
  // Every circle has room for its radius inside the frame.
  const double room = largest_radius + 6;
  const Range x_range = shown(chart.x, xs, 0.12);
  const Range y_range = shown(chart.y, ys, 0.06);
  const Scale y =
      scale_of(chart.y, y_range, frame.bottom - room, frame.top + room);
  frame.left = left_edge(y, frame.font);
  const Scale x =
      scale_of(chart.x, x_range, frame.left + room, frame.right - room);

  std::vector<Circle> circles;
  for (const Bubble& b : chart.bubbles) {
    const double share = largest > 0 ? b.area / largest : 1;
    circles.push_back(
        {&b, x(b.x), y(b.y), std::max(largest_radius * std::sqrt(share), 2.5)});
  }
  // Small ones are drawn upon large ones.
  std::sort(
      circles.begin(), circles.end(),
      [](const Circle& a, const Circle& b) { return a.radius > b.radius; });
  std::string out = open_svg(size, chart.title, frame.font);
  out += y_axis(chart.y, frame, y) + x_axis(chart.x, frame, x, x.ticks());
  std::vector<Box> labels;
  std::string texts;
  for (const Circle& c : circles) {
    out += fmt::format(
        "<circle class=\"bubble c{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" "
        "r=\"{:.1f}\"><title>{}: {}</title></circle>\n",
        c.bubble->colour, c.x, c.y, c.radius, escape(c.bubble->name),
        escape(c.bubble->text));
    const Size label = {std::max(bold_width(c.bubble->name, frame.font),
                                 text_width(c.bubble->text, frame.font)),
                        2.5 * frame.font};
    const Box box = place_label(c, label, frame, circles, labels);
    labels.push_back(box);
    const bool left = box.right<c.x, right = box.left> c.x;
    const char* anchor = left ? "end" : right ? "start" : "middle";
    const double at = left    ? box.right
                      : right ? box.left
                              : (box.left + box.right) / 2;
    texts += fmt::format(
        "<text class=\"name c{}\" x=\"{:.1f}\" y=\"{:.1f}\" "
        "text-anchor=\"{}\">{}</text><text x=\"{:.1f}\" y=\"{:.1f}\" "
        "text-anchor=\"{}\">{}</text>\n",
        c.bubble->colour, at, box.top + frame.font, anchor,
        escape(c.bubble->name), at, box.top + 2.2 * frame.font, anchor,
        escape(c.bubble->text));
  }
  return out + texts + "</svg>\n";
}

}  // namespace luna::report
