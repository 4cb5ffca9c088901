#include "report/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "luna/report/format.h"

namespace luna::report {

double text_width(const std::string& text, double font) {
  return 0.57 * font * static_cast<double>(display_width(text));
}

double bold_width(const std::string& text, double font) {
  return 0.64 * font * static_cast<double>(display_width(text));
}

void Range::add(double value) {
  low = std::min(low, value);
  high = std::max(high, value);
}

Range shown(const Axis& axis, Range data, double margin) {
  if (axis.logarithmic) {
    const double factor = std::pow(data.high / data.low, margin);
    const double least = margin > 0 ? 1.2 : 1;
    data.low /= std::max(factor, least);
    data.high *= std::max(factor, least);
  } else {
    const double more = margin * (data.high - data.low);
    data.low -= more;
    data.high += more;
  }
  data.low = axis.low.value_or(data.low);
  data.high = axis.high.value_or(data.high);
  return data;
}

Scale scale_of(const Axis& axis, const Range& range, double from, double to) {
  return axis.logarithmic ? Scale::logarithmic(range.low, range.high, from, to)
                          : Scale::linear(range.low, range.high, from, to);
}

std::string tick_label(double value) {
  const bool whole = std::abs(value - std::round(value)) < 1e-9;
  if (whole || std::abs(value) >= 1000) return grouped(std::llround(value));
  return fmt::format("{:.6g}", value);
}

std::string open_svg(Size size, const std::string& title, double font) {
  return fmt::format(
      "<svg viewBox=\"0 0 {0:g} {1:g}\" width=\"{0:g}\" height=\"{1:g}\" "
      "role=\"img\" aria-label=\"{2}\" font-size=\"{3:g}\">\n",
      size.width, size.height, escape(title), font);
}

double left_edge(const Scale& y, double font) {
  double widest = 0;
  for (const double tick : y.ticks()) {
    widest = std::max(widest, text_width(tick_label(tick), font));
  }
  return widest + 12;
}

std::string y_axis(const Axis& axis, const Frame& frame, const Scale& y) {
  std::string out;
  for (const double value : y.ticks()) {
    const double place = y(value);
    out += fmt::format(
        "<line class=\"grid\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" "
        "y2=\"{:.1f}\"/><text x=\"{:.1f}\" y=\"{:.1f}\" "
        "text-anchor=\"end\">{}</text>",
        frame.left, frame.right, place, place, frame.left - 7,
        place + 0.35 * frame.font, tick_label(value));
  }
  return out +
         fmt::format("<text class=\"axis\" x=\"2\" y=\"{:.1f}\">{}</text>\n",
                     frame.font + 1, escape(axis.label));
}

std::string x_axis(const Axis& axis, const Frame& frame, const Scale& x,
                   const std::vector<double>& values) {
  const auto label = [&](double value) {
    return frame.narrow && axis.ticks_at_points ? short_length(value)
                                                : tick_label(value);
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
      escape(axis.label));
  return out;
}

std::string marker(int colour, double x, double y, const std::string& title) {
  const char* tag = "path";
  std::string shape;
  switch (colour % 4) {
    case 1:
      tag = "circle";
      shape = fmt::format("cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.6\"", x, y);
      break;
    case 2:
      tag = "rect";
      shape =
          fmt::format("x=\"{:.1f}\" y=\"{:.1f}\" width=\"6.4\" height=\"6.4\"",
                      x - 3.2, y - 3.2);
      break;
    case 3:
      shape = fmt::format("d=\"M{:.1f} {:.1f}l4.2 7.4h-8.4z\"", x, y - 4.6);
      break;
    default:
      shape = fmt::format("d=\"M{:.1f} {:.1f}l4.4 4.4l-4.4 4.4l-4.4 -4.4z\"", x,
                          y - 4.4);
  }
  if (title.empty()) return fmt::format("<{} {}/>", tag, shape);
  return fmt::format("<{0} {1}><title>{2}</title></{0}>", tag, shape,
                     escape(title));
}

}  // namespace luna::report
