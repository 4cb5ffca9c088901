#pragma once

#include <string>
#include <vector>

#include "luna/report/page.h"
#include "luna/report/paper_results.h"
#include "luna/report/plot.h"
#include "luna/report/run.h"
#include "luna/report/table.h"

namespace luna::report {

struct Statistic {
  double mean = 0;
  std::optional<double> sd{};  ///< of the sample; from two values on
  std::size_t count = 0;
};

/// Nothing of no values.
std::optional<Statistic> statistic(const std::vector<double>& values);

/// Runs that differ by their seed alone.
struct RunGroup {
  std::string title{};  ///< mechanism, and what else tells it from others
  std::string task{};
  int colour = 0;
  bool dashed = false;
  std::vector<std::size_t> runs{};  ///< of RunReport::runs
  std::optional<Statistic> accuracy{};
  bool tested = false;  ///< on the test set, else on the validation's best
  std::optional<Statistic> steps_per_s{}, peak_memory{};
  std::vector<const PaperRow*> published{};
};

/// A mechanism beside softmax: both as ratios to it.
struct Beside {
  std::size_t group = 0;
  double speed = 1;
  std::optional<double> memory{};
  std::optional<PaperSpeed> published{};
};

/// Groups that did the same work on the same machine, softmax among them.
struct Comparison {
  std::string task{};
  std::int64_t length = 0, batch = 0;
  std::string machine{};
  std::vector<Beside> groups{};  ///< softmax too, with ratios of 1
};

/// Everything that the page says.
struct RunReport {
  std::vector<Run> runs{};
  std::vector<RunGroup> groups{};
  std::vector<Comparison> comparisons{};
};

RunReport make_report(std::vector<Run> runs);

/// Ours beside the papers'.
Table results_table(const RunReport& report);
/// What both papers list for the tasks that were run.
Table published_table(const RunReport& report);
Table comparison_table(const RunReport& report, const Comparison& comparison);
Table psi_table(const Run& run);
/// Every run: steps, times, sizes.
Table runs_table(const RunReport& report);
/// "name: not finished: 20 of 500 steps; no samples.json".
std::vector<std::string> run_notes(const RunReport& report);

LinePlot loss_plot(const RunReport& report, const std::string& task);
LinePlot accuracy_plot(const RunReport& report, const std::string& task);
RatioBars comparison_bars(const RunReport& report,
                          const Comparison& comparison);
BubbleChart trade_off(const RunReport& report, const Comparison& comparison);
SmallMultiples psi_plot(const RunGroup& group, const LearnedPsi& psi);

/// For a terminal.
std::string report_text(const RunReport& report);
/// Every number of the page.
std::string report_json(const RunReport& report);
/// All of it; as HTML or as Markdown.
Page report_page(const RunReport& report);

}  // namespace luna::report
