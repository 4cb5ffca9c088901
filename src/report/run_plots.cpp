#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "luna/data/translation.h"
#include "luna/report/format.h"
#include "luna/report/run_report.h"

namespace luna::report {
namespace {

constexpr std::size_t kMostPoints = 160;  // of a curve; more are averaged

using Values = std::map<std::int64_t, std::vector<double>>;

/// The field by step, over the seeds of a group.
template <class ValueOf>
Values values_of(const RunReport& report, const RunGroup& group,
                 Curve Run::*curve, ValueOf value_of) {
  Values values;
  for (const std::size_t i : group.runs) {
    for (const auto& [step, metric] : report.runs[i].*curve) {
      if (const auto value = value_of(metric)) values[step].push_back(*value);
    }
  }
  return values;
}

/// Mean of the seeds, lowest and highest as the spread.
std::vector<Point> points_of(const Values& values) {
  std::vector<Point> points;
  const std::size_t bucket = (values.size() + kMostPoints - 1) / kMostPoints;
  Point sum{};
  std::size_t count = 0, index = 0;
  for (const auto& [step, seeds] : values) {
    const auto [low, high] = std::minmax_element(seeds.begin(), seeds.end());
    const double x = static_cast<double>(step);
    sum = {sum.x + x, sum.y + statistic(seeds)->mean, sum.low + *low,
           sum.high + *high};
    ++count;
    ++index;
    if (count < bucket && index < values.size()) continue;
    const double n = static_cast<double>(count);
    points.push_back({sum.x / n, sum.y / n, sum.low / n, sum.high / n});
    sum = {};
    count = 0;
  }
  return points;
}

template <class ValueOf>
LinePlot curves(const RunReport& report, const std::string& task,
                Curve Run::*curve, ValueOf value_of) {
  LinePlot plot;
  plot.points = false;
  plot.x = {.label = "optimizer steps"};
  for (const RunGroup& group : report.groups) {
    if (group.task != task) continue;
    Series series{group.title, group.colour, group.dashed,
                  points_of(values_of(report, group, curve, value_of))};
    if (!series.points.empty()) plot.series.push_back(std::move(series));
  }
  return plot;
}

}  // namespace

LinePlot loss_plot(const RunReport& report, const std::string& task) {
  LinePlot plot =
      curves(report, task, &Run::train, [](const Metric& m) { return m.loss; });
  plot.title = "Training loss by step, " + task;
  plot.y = {.label = "training loss, nats"};
  return plot;
}

LinePlot accuracy_plot(const RunReport& report, const std::string& task) {
  LinePlot plot = curves(report, task, &Run::validation,
                         [](const Metric& m) -> std::optional<double> {
                           if (!m.accuracy) return std::nullopt;
                           return 100 * *m.accuracy;
                         });
  const bool bleu = task == data::kTranslationTask;
  plot.title = fmt::format("Validation {} by step, {}",
                           bleu ? "BLEU" : "accuracy", task);
  plot.y = {.label = bleu ? "validation BLEU" : "validation accuracy, %"};
  return plot;
}

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
