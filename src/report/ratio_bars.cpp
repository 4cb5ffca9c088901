#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "luna/report/format.h"
#include "luna/report/plot.h"
#include "report/svg.h"

namespace luna::report {

std::string svg(const RatioBars& chart, double width) {
  if (chart.bars.empty()) return "";
  const double font = width < 500 ? 11.5 : 13;
  const double bar_height = 13, bar_step = 19;
  double labels = 0, texts = 0, low = 1, high = 1;
  std::size_t groups = 0;
  for (std::size_t i = 0; i < chart.bars.size(); ++i) {
    const Bar& bar = chart.bars[i];
    labels = std::max(labels, 1.15 * text_width(bar.label, font));  // bold
    texts = std::max(texts, bold_width(bar.text, font));  // × and m are wide
    low = std::min(low, bar.value);
    high = std::max(high, bar.value);
    if (i == 0 || chart.bars[i - 1].label != bar.label) ++groups;
  }
  // Labels stand above their bars where they would leave them little room.
  const bool narrow = width < 500 || labels > 0.4 * width;
  const double group_gap = narrow ? 26 : 14;
  const double top = 8;
  const double bottom = top +
                        bar_step * static_cast<double>(chart.bars.size()) +
                        group_gap * static_cast<double>(groups);
  const double height = bottom + 16 + 2.2 * font;
  const bool some_below = low < 1;
  const Scale x = Scale::logarithmic(
      low, high, (narrow ? 14 : labels + 14) + (some_below ? texts + 8 : 0),
      width - texts - 10);

  std::string out = open_svg({width, height}, chart.title, font);
  double free_from = 0;
  for (const double tick : x.ticks()) {
    out += fmt::format(
        "<line class=\"{3}\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" "
        "y2=\"{2:.1f}\"/>",
        x(tick), top, bottom, tick == 1 ? "one" : "grid");
    const std::string label = fmt::format("{:g}×", tick);
    if (x(tick) - text_width(label, font) / 2 < free_from) continue;
    free_from = x(tick) + text_width(label, font) / 2 + 6;
    out += fmt::format(
        "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n",
        x(tick), bottom + 4 + font, label);
  }
  double y = top;
  for (std::size_t i = 0; i < chart.bars.size(); ++i) {
    const Bar& bar = chart.bars[i];
    const bool first = i == 0 || chart.bars[i - 1].label != bar.label;
    if (first) y += i == 0 && !narrow ? group_gap / 2 : group_gap;
    const double baseline = y + bar_height / 2 + 0.35 * font;
    if (first) {
      out +=
          fmt::format("<text class=\"name c{}\" x=\"2\" y=\"{:.1f}\">{}</text>",
                      bar.colour, narrow ? y - 6 : baseline, escape(bar.label));
    }
    const double from = std::min(x(1), x(bar.value));
    const double length = std::abs(x(bar.value) - x(1));
    const bool above = bar.value >= 1;
    out += fmt::format(
        "<rect class=\"bar c{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" "
        "height=\"{:g}\" rx=\"2\"/><text x=\"{:.1f}\" y=\"{:.1f}\" "
        "text-anchor=\"{}\">{}</text>\n",
        bar.colour, from, y, std::max(length, 1.5), bar_height,
        above ? from + length + 6 : from - 6, baseline, above ? "start" : "end",
        escape(bar.text));
    y += bar_step;
  }
  out += fmt::format(
      "<text class=\"axis\" x=\"{:.1f}\" y=\"{:.1f}\" "
      "text-anchor=\"middle\">{}</text>\n",
      width / 2, bottom + 10 + 2.2 * font, escape(chart.x_label));
  return out + "</svg>\n";
}

}  // namespace luna::report
