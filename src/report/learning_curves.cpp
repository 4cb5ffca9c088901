#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "luna/data/translation.h"
#include "luna/report/run_report.h"

namespace luna::report {
namespace {

constexpr std::size_t kMostPoints = 160;  // of a curve; more are averaged
// More lines than that cannot be told apart.
constexpr std::size_t kMostLines = 9;
constexpr std::size_t kOthers = 6;  // beside what they are held against

using Values = std::map<std::int64_t, std::vector<double>>;

/// The field by step, over the seeds of a group. Seeds that were logged at
/// other steps are taken between theirs, where they go that far: a mean over
/// those that happen to have a step would jump up and down.
template <class ValueOf>
Values values_of(const RunReport& report, const RunGroup& group,
                 Curve Run::*curve, ValueOf value_of) {
  std::vector<std::map<std::int64_t, double>> seeds;
  Values values;
  for (const std::size_t i : group.runs) {
    seeds.emplace_back();
    for (const auto& [step, metric] : report.runs[i].*curve) {
      const auto value = value_of(metric);
      if (!value) continue;
      seeds.back()[step] = *value;
      values[step];
    }
  }
  for (auto& [step, all] : values) {
    for (const auto& seed : seeds) {
      const auto next = seed.lower_bound(step);
      if (next == seed.end()) continue;  // it ended before
      if (next->first == step) {
        all.push_back(next->second);
      } else if (next != seed.begin()) {
        const auto before = std::prev(next);
        const double share = static_cast<double>(step - before->first) /
                             static_cast<double>(next->first - before->first);
        all.push_back(before->second + share * (next->second - before->second));
      }
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
LinePlot curves(const RunReport& report, const CurveChart& chart,
                Curve Run::*curve, ValueOf value_of) {
  LinePlot plot;
  plot.points = false;
  plot.x = {.label = "optimizer steps"};
  for (const CurveChart::Line& line : chart.lines) {
    const RunGroup& group = report.groups[line.group];
    Series series{group.title, line.colour, line.dashed,
                  points_of(values_of(report, group, curve, value_of))};
    if (!series.points.empty()) plot.series.push_back(std::move(series));
  }
  return plot;
}

CurveChart::Line own_line(const RunReport& report, std::size_t group) {
  return {group, report.groups[group].colour, report.groups[group].dashed};
}

/// Its mechanism, and where the model has its norms, by which the papers'
/// recipes are known.
std::string kind_of(const RunReport& report, std::size_t group) {
  const Run& run = report.runs[report.groups[group].runs[0]];
  return run.attention + " " + (run.config ? run.config->model.norm : "");
}

/// Lines for `others` in colours that are not taken yet.
void add_lines(CurveChart& chart, const std::vector<std::size_t>& others) {
  std::set<int> taken = {0};
  for (const CurveChart::Line& line : chart.lines) taken.insert(line.colour);
  int colour = 0;
  bool dashed = false;
  for (const std::size_t group : others) {
    do {
      if (++colour == kColours) {
        colour = 1;
        dashed = true;
      }
    } while (!dashed && taken.contains(colour));
    chart.lines.push_back({group, colour, dashed});
  }
}

}  // namespace

std::vector<CurveChart> curve_charts(const RunReport& report,
                                     const std::string& task) {
  std::vector<std::size_t> all, papers, others;
  for (std::size_t i = 0; i < report.groups.size(); ++i) {
    const RunGroup& group = report.groups[i];
    if (group.task != task) continue;
    all.push_back(i);
    (group.published.empty() ? others : papers).push_back(i);
  }
  if (all.empty()) return {};
  CurveChart first{task, task, {}};
  if (all.size() <= kMostLines) {
    for (const std::size_t i : all) first.lines.push_back(own_line(report, i));
    return {first};
  }
  std::vector<CurveChart> charts;
  if (!papers.empty()) {
    first.title += ", beside the papers";
    for (const std::size_t i : papers) {
      first.lines.push_back(own_line(report, i));
    }
    charts.push_back(first);
  }
  // To hold the others against: of the papers' rows the first of each mechanism
  // in this model; where no paper has one, the reference.
  const bool no_paper = papers.empty();
  std::optional<std::size_t> reference;
  if (no_paper) {
    const auto found = std::ranges::find_if(others, [&](std::size_t i) {
      return report.runs[report.groups[i].runs[0]].attention == kReference;
    });
    if (found != others.end()) {
      reference = *found;
      others.erase(found);
    }
  }
  const std::size_t count = (others.size() + kOthers - 1) / kOthers;
  for (std::size_t k = 0; k < count; ++k) {
    CurveChart chart{task, no_paper ? task : task + ", others", {}};
    if (count > 1) chart.title += fmt::format(", {} of {}", k + 1, count);
    const std::vector<std::size_t> some(
        others.begin() + static_cast<std::ptrdiff_t>(k * kOthers),
        others.begin() + static_cast<std::ptrdiff_t>(
                             std::min(others.size(), (k + 1) * kOthers)));
    std::set<std::string> wanted;
    for (const std::size_t i : some) wanted.insert(kind_of(report, i));
    for (const std::size_t i : papers) {
      if (wanted.erase(kind_of(report, i)) > 0) {
        chart.lines.push_back(own_line(report, i));
      }
    }
    if (reference) chart.lines.push_back(own_line(report, *reference));
    add_lines(chart, some);
    charts.push_back(std::move(chart));
  }
  return charts;
}

LinePlot loss_plot(const RunReport& report, const CurveChart& chart) {
  LinePlot plot = curves(report, chart, &Run::train,
                         [](const Metric& m) { return m.loss; });
  plot.title = "Training loss by step, " + chart.title;
  plot.y = {.label = "training loss, nats"};
  return plot;
}

LinePlot accuracy_plot(const RunReport& report, const CurveChart& chart) {
  LinePlot plot = curves(report, chart, &Run::validation,
                         [](const Metric& m) -> std::optional<double> {
                           if (!m.accuracy) return std::nullopt;
                           return 100 * *m.accuracy;
                         });
  const bool bleu = chart.task == data::kTranslationTask;
  plot.title = fmt::format("Validation {} by step, {}",
                           bleu ? "BLEU" : "accuracy", chart.title);
  plot.y = {.label = bleu ? "validation BLEU" : "validation accuracy, %"};
  return plot;
}

}  // namespace luna::report
