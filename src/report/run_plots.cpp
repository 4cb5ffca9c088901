#include <fmt/format.h>

#include "luna/data/translation.h"
#include "luna/report/format.h"
#include "luna/report/run_report.h"

namespace luna::report {

RatioBars comparison_bars(const RunReport& report,
                          const Comparison& comparison) {
  RatioBars chart;
  chart.title = "Speed and memory beside softmax, " + comparison.title;
  chart.x_label = "times softmax's steps/s, times softmax's peak memory";
  for (const Beside& beside : comparison.groups) {
    const RunGroup& group = report.groups[beside.group];
    if (group.colour == 0) continue;
    chart.bars.push_back({group.title, beside.speed,
                          times(beside.speed) + " speed", group.colour});
    if (!beside.memory) continue;
    chart.bars.push_back({group.title, *beside.memory,
                          times(*beside.memory) + " memory", group.colour});
  }
  return chart;
}

BubbleChart trade_off(const RunReport& report, const Comparison& comparison) {
  BubbleChart chart;
  chart.title = "Accuracy, speed and memory, " + comparison.title;
  chart.x = {.label = "times softmax's steps/s", .logarithmic = true};
  bool tested = true;
  for (const Beside& beside : comparison.groups) {
    const RunGroup& group = report.groups[beside.group];
    if (!group.accuracy || !beside.memory) continue;
    tested = tested && group.tested;
    chart.bubbles.push_back(
        {group.title, beside.speed, 100 * group.accuracy->mean, *beside.memory,
         memory_size(group.peak_memory->mean), group.colour});
  }
  const bool bleu = comparison.task == data::kTranslationTask;
  const std::string what = bleu ? "BLEU" : "accuracy";
  chart.y = {.label = (tested ? "test " + what
                              : what + " (test, or validation so far)") +
                      (bleu ? "" : ", %")};
  return chart;
}

namespace {

std::string subscript(std::size_t number) {
  static const char* kDigits[] = {"₀", "₁", "₂", "₃", "₄",
                                  "₅", "₆", "₇", "₈", "₉"};
  std::string text;
  for (const char digit : std::to_string(number)) {
    text += kDigits[digit - '0'];
  }
  return text;
}

}  // namespace

SmallMultiples psi_plot(const RunGroup& group, const LearnedPsi& psi) {
  SmallMultiples multiples;
  multiples.title = "Learned psi of " + psi.layer;
  multiples.x = {.label = "u"};
  const auto series = [&](const std::vector<double>& values, bool start) {
    Series line{
        start ? "start" : "learned", start ? 0 : group.colour, start, {}};
    for (std::size_t i = 0; i < values.size(); ++i) {
      line.points.push_back({psi.u[i], values[i], values[i], values[i]});
    }
    return line;
  };
  for (std::size_t c = 0; c < psi.now.size(); ++c) {
    Panel panel{fmt::format("ψ{}(u){}", subscript(c + 1),
                            psi.live[c] ? "" : ", zero here"),
                {}};
    if (c < psi.start.size()) {
      panel.series.push_back(series(psi.start[c], true));
    }
    panel.series.push_back(series(psi.now[c], false));
    multiples.panels.push_back(std::move(panel));
  }
  return multiples;
}

}  // namespace luna::report
