#pragma once

#include <map>
#include <string>
#include <vector>

#include "luna/report/page.h"
#include "luna/report/paper_results.h"
#include "luna/report/plot.h"
#include "luna/report/run.h"
#include "luna/report/table.h"

namespace luna::report {

/// The mechanism whose speed, memory and curves others' are held against.
inline constexpr const char* kReference = "softmax";

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
  std::optional<Statistic> minutes{};  ///< of a run on its machine
  std::optional<std::int64_t> parameters{};
  std::vector<const PaperRow*> published{};
  std::string data{};                         ///< of translation: its name
  std::map<std::string, Statistic> scores{};  ///< of translation: Run::scores
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
  std::string title{};  ///< task, data where it has a name, length and batch
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

/// Our mean over three seeds or more against a published number: no worse than
/// by our standard deviation. Nothing of fewer seeds, without a test, or by
/// another recipe than the paper's or fewer steps than it has.
std::optional<bool> reached(const RunReport& report, const RunGroup& group,
                            const PaperRow& published);

/// Ours beside the papers': groups that a paper has a row of.
Table results_table(const RunReport& report);
/// The others, all but translation: tasks, options, models or recipes of no
/// paper's row.
Table other_results_table(const RunReport& report);
/// A line a mechanism and recipe, a column a task of the Long Range Arena, the
/// mean without retrieval (of whose stand-in no paper says anything), minutes
/// in all. Mechanisms with one task alone are left out.
Table suite_table(const RunReport& report);
/// BLEU of translators, and their distance from softmax on the same data.
Table translation_table(const RunReport& report);
/// What both papers list for the tasks that were run.
Table published_table(const RunReport& report);
Table comparison_table(const RunReport& report, const Comparison& comparison);
Table psi_table(const Run& run);
/// How alike the kernels of two layers are.
struct PsiAlignment {
  const Run* run_a = nullptr;
  const Run* run_b = nullptr;
  std::string layer_a{}, layer_b{};
  double alignment = 0;
};
/// Every pair of layers of these runs, once.
std::vector<PsiAlignment> psi_alignments(const std::vector<const Run*>& runs);
Table psi_alignment_table(const std::vector<const Run*>& runs);
/// What the table comes to, in a sentence; empty of fewer than two layers.
std::string psi_alignment_text(const std::vector<const Run*>& runs);
/// Every run: steps, times, sizes.
Table runs_table(const RunReport& report);
/// "name: not finished: 20 of 500 steps; no samples.json".
std::vector<std::string> run_notes(const RunReport& report);

/// Groups of a task whose learning curves stand in one picture.
struct CurveChart {
  struct Line {
    std::size_t group = 0;
    int colour = 0;
    bool dashed = false;
  };
  std::string task{}, title{};
  std::vector<Line> lines{};
};
/// One for a task with few groups. Of many: those that stand beside the papers,
/// then the others some at a time, each time with the papers' group of their
/// mechanisms.
std::vector<CurveChart> curve_charts(const RunReport& report,
                                     const std::string& task);
LinePlot loss_plot(const RunReport& report, const CurveChart& chart);
LinePlot accuracy_plot(const RunReport& report, const CurveChart& chart);
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
