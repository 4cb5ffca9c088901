#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "luna/data/translation.h"
#include "luna/report/format.h"
#include "luna/report/run_report.h"
#include "report/picture.h"

namespace luna::report {
namespace {

constexpr std::size_t kMostPictures = 7;  // of right ones and of wrong ones
constexpr std::size_t kMostTexts = 4;
constexpr std::size_t kMostPsiRuns = 4;    // beside one of each task
constexpr std::size_t kMostLetters = 260;  // of a text
constexpr std::size_t kMostCommits = 3;    // by name

std::vector<std::string> distinct(const RunReport& report,
                                  std::string Run::*field) {
  std::vector<std::string> values;
  for (const Run& run : report.runs) {
    const std::string& value = run.*field;
    if (!value.empty() &&
        std::find(values.begin(), values.end(), value) == values.end()) {
      values.push_back(value);
    }
  }
  return values;
}

std::string counted(std::size_t count, const std::string& one) {
  return fmt::format("{} {}{}", count, one, count == 1 ? "" : "s");
}

/// On what the runs were made, and from which sources.
std::string origin(const RunReport& report) {
  std::vector<std::string> parts = distinct(report, &Run::machine);
  for (std::string& v : distinct(report, &Run::versions)) {
    parts.push_back(std::move(v));
  }
  const std::vector<std::string> commits = distinct(report, &Run::commit);
  if (commits.size() > kMostCommits) {
    parts.push_back(counted(commits.size(), "commit") +
                    ", each run's in its summary.json");
  } else if (!commits.empty()) {
    parts.push_back(fmt::format("commit{} {}", commits.size() == 1 ? "" : "s",
                                fmt::join(commits, ", ")));
  }
  return fmt::format("{}", fmt::join(parts, "; "));
}

std::string title_of(const RunReport& report) {
  if (report.runs.size() == 1) return "luna report: " + report.runs[0].name;
  return fmt::format("luna report: {}",
                     fmt::join(distinct(report, &Run::task), ", "));
}

/// The page in a sentence: who got how far.
std::string headline(const RunReport& report) {
  const std::vector<std::string> tasks = distinct(report, &Run::task);
  std::vector<const RunGroup*> groups;
  for (const RunGroup& group : report.groups) {
    if (group.accuracy) groups.push_back(&group);
  }
  const std::string what =
      counted(report.runs.size(), "run") + " of " +
      counted(distinct(report, &Run::title).size(), "mechanism");
  if (tasks.size() > 1 || groups.empty()) {
    return fmt::format("{} on {}.", what, fmt::join(tasks, ", "));
  }
  const bool bleu = tasks[0] == data::kTranslationTask;
  std::sort(groups.begin(), groups.end(),
            [](const RunGroup* a, const RunGroup* b) {
              return a->accuracy->mean > b->accuracy->mean;
            });
  std::vector<std::string> results;
  for (const RunGroup* group : groups) {
    results.push_back(fmt::format("{} {:.1f}{}", group->title,
                                  100 * group->accuracy->mean,
                                  bleu ? "" : " %"));
  }
  if (results.size() > 4) results.resize(4);
  const bool tested = std::all_of(groups.begin(), groups.end(),
                                  [](const auto* g) { return g->tested; });
  return fmt::format("{} on {}{}: {}{}.", bleu ? "BLEU" : "Accuracy", tasks[0],
                     tested ? "" : " so far", fmt::join(results, ", "),
                     groups.size() > 4 ? ", …" : "");
}

void add_translation(Page& page, const RunReport& report) {
  const Table table = translation_table(report);
  if (table.empty()) return;
  page.add_heading("Translation");
  page.add_table(table);
  page.add_note(
      "BLEU as sacreBLEU has it (13a, cased), mean ± standard deviation over "
      "the seeds; “its test” is that of the data's folder with the beam of the "
      "config, the others are those of scores/ in the runs' folders. Beside "
      "softmax: the difference of the means on the same data.");
}

void add_suite(Page& page, const RunReport& report) {
  const Table table = suite_table(report);
  if (table.empty()) return;
  page.add_heading("The whole suite");
  page.add_table(table);
  page.add_note(
      "Runs by one of the papers' recipes. Accuracy in percent, the mean over "
      "the seeds, and the minutes of one run of each task, as it was and, at "
      "the fastest seed's rate, for all steps of the recipe. The mean is that "
      "of ListOps, Text, Image and Pathfinder.");
}

/// What both tables of results say.
constexpr const char* kHowMeasured =
    "Mean ± standard deviation over the seeds, on the test set with the "
    "weights that were best in validation; without a test, the best "
    "validation so far. Minutes and peak memory are those of a run on its "
    "machine: on one with a GPU, the GPU's.";

void add_results(Page& page, const RunReport& report) {
  const Table results = results_table(report);
  if (results.empty()) return;
  page.add_heading("Results beside the papers");
  page.add_table(results);
  page.add_note(
      std::string(kHowMeasured) +
      " “Universal” is arXiv 2512.08061, “nested” NeurIPS "
      "2021 (five seeds); a difference is in percentage points. Reached: by "
      "our mean over three seeds or more in that paper's recipe (all its "
      "steps, or the run's patience was over before), or short of it by our "
      "standard deviation at most. Only runs by one of the papers' recipes, at "
      "the length of their task, are set beside them: beside that paper's row "
      "where it has one.");
  const Table table = published_table(report);
  if (table.empty()) return;
  page.add_details("All that the papers list for these tasks", table);
}

void add_other_results(Page& page, const RunReport& report) {
  const Table others = other_results_table(report);
  if (others.empty()) return;
  const bool alone = results_table(report).empty();
  page.add_heading(alone ? "Results" : "Results that no paper lists");
  page.add_table(others);
  page.add_note(
      alone ? kHowMeasured
            : "Options, models, recipes and data that neither paper lists; "
              "measured as above.");
  const std::vector<std::string> tasks = distinct(report, &Run::task);
  if (std::find(tasks.begin(), tasks.end(), "retrieval-imdb") != tasks.end()) {
    page.add_note(
        "retrieval-imdb is our stand-in on other texts; the papers' Retrieval "
        "(AAN) says nothing about it.");
  }
}

void add_curves(Page& page, const RunReport& report) {
  bool first = true;
  const auto tasks = distinct(report, &Run::task);
  for (const std::string& task : tasks) {
    const std::vector<CurveChart> charts = curve_charts(report, task);
    for (const CurveChart& chart : charts) {
      const LinePlot loss = loss_plot(report, chart);
      const LinePlot accuracy = accuracy_plot(report, chart);
      if (loss.series.empty() && accuracy.series.empty()) continue;
      if (first) page.add_heading("Learning curves");
      if (tasks.size() + charts.size() > 2) page.add_subheading(chart.title);
      page.add_plots({loss, accuracy},
                     first ? "Runs that differ by their seed alone are one "
                             "line, their mean, in a band from the lowest to "
                             "the highest. Long curves are averaged over "
                             "neighbouring points."
                           : "");
      first = false;
    }
  }
}

void add_comparisons(Page& page, const RunReport& report) {
  if (report.comparisons.empty()) return;
  page.add_heading("Speed and memory beside softmax");
  for (const Comparison& c : report.comparisons) {
    const bool first = &c == &report.comparisons.front();
    page.add_subheading(c.title);
    page.add_bars(
        comparison_bars(report, c),
        !first
            ? ""
            : "Training steps a second and peak memory, as multiples of "
              "softmax's; logarithmic. To the right of 1× is more than "
              "softmax: good for speed, bad for memory. Runs that shared the "
              "machine were the slower for it.");
    page.add_table(comparison_table(report, c));
  }
  page.add_heading("Accuracy, speed and memory");
  for (const Comparison& c : report.comparisons) {
    const BubbleChart chart = trade_off(report, c);
    if (chart.bubbles.empty()) continue;
    if (report.comparisons.size() > 1) {
      page.add_subheading(c.title);
    }
    page.add_bubbles(
        chart, &c != &report.comparisons.front()
                   ? ""
                   : "Up is more accurate, right is faster (logarithmic); "
                     "the area of a circle is the peak memory written at it.");
  }
}

struct Drawn {
  const RunGroup* group;
  const Run* run;  ///< the most accurate of the seeds
};

/// The most accurate group of each task, then others: what is drawn comes
/// first, `count` of it.
std::vector<Drawn> groups_with_psi(const RunReport& report,
                                   std::size_t& count) {
  std::vector<Drawn> all;
  for (const RunGroup& group : report.groups) {
    const Run* best = nullptr;
    for (const std::size_t i : group.runs) {
      const Run& run = report.runs[i];
      if (!run.psi.empty() &&
          (best == nullptr || run.accuracy() > best->accuracy())) {
        best = &run;
      }
    }
    if (best != nullptr) all.push_back({&group, best});
  }
  std::map<std::string, const Run*> best_of_task;
  for (const Drawn& one : all) {
    const Run*& best = best_of_task[one.group->task];
    if (best == nullptr || one.run->accuracy() > best->accuracy()) {
      best = one.run;
    }
  }
  std::stable_partition(all.begin(), all.end(), [&](const Drawn& one) {
    return best_of_task[one.group->task] == one.run;
  });
  count = std::min(all.size(), std::max(kMostPsiRuns, best_of_task.size()));
  return all;
}

void add_psi(Page& page, const RunReport& report) {
  std::size_t count = 0;
  std::vector<Drawn> all = groups_with_psi(report, count);
  if (all.empty()) return;
  const std::size_t left = all.size() - count;
  all.resize(count);
  page.add_heading("Learned ψ");
  page.add_paragraph(
      "Universal attention learns its kernel: L scalar functions ψ of a "
      "projection u of a token. Solid: learned. Dashed: at the start.");
  std::vector<const Run*> runs;
  for (const auto& [group, run] : all) {
    runs.push_back(run);
    page.add_subheading(
        fmt::format("{} on {}: {}", group->title, group->task, run->name));
    page.add_table(psi_table(*run));
    for (const LearnedPsi& psi : run->psi) {
      page.add_multiples(psi_plot(*group, psi),
                         fmt::format("{}: ψ over u from {:.2f} to {:.2f}; all "
                                     "channels on one scale, no unit.",
                                     psi.layer, psi.u.front(), psi.u.back()));
    }
  }
  page.add_note(
      "u: where the projections of validation samples are, but for half a per "
      "cent on either side (assumed: the run did not look, so that u is taken "
      "as a standard normal number); everything here is measured there. Live: "
      "not zero everywhere; live share: of channels and u; live, q / k: of the "
      "features of queries and of keys; silent: tokens all of whose features "
      "are zero; knots: where ψ bends; change: the distance from the start in "
      "units of the start's size. Channels that differ: 1 where all are "
      "multiples of one function, as many as there are where none is like "
      "another. Like a bell, like a line: how well the layer's kernel, the sum "
      "of ψ(u)ψ(v) over channels, is aligned with exp(−(u−v)²/2s²), s the "
      "standard deviation of u, which is softmax's exp(uv) but for the lengths "
      "of queries and keys, and with a straight uv; from 0 to 1 (centred "
      "kernel alignment). Of runs that differ by seed the most accurate is "
      "shown.");
  const std::string alike = psi_alignment_text(runs);
  if (!alike.empty()) {
    page.add_paragraph(alike);
    page.add_details("How alike the layers' kernels are",
                     psi_alignment_table(runs));
  }
  if (left > 0) {
    page.add_note(
        fmt::format("{} more are not drawn; a report of theirs "
                    "alone has them.",
                    counted(left, "group")));
  }
}

std::string shortened(const std::string& text) {
  std::size_t letters = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xC0) == 0x80) continue;
    if (++letters > kMostLetters) return text.substr(0, i) + " …";
  }
  return text;
}

SampleCard card_of(const Run& run, const Prediction& p) {
  SampleCard card;
  if (p.kind == "translation") {
    card.text = shortened(p.text);
    card.right = p.right();
    card.verdict = p.translation;
    if (!card.right) card.truth = "is " + p.second;
    return card;
  }
  if (!p.pixels.empty()) {
    card.picture = picture_address(
        data::from_planes(p.pixels, p.height, p.width, p.channels));
  } else {
    card.text = shortened(p.text);
    if (!p.second.empty()) card.text += "  ⁄  " + shortened(p.second);
  }
  card.symbols = p.kind == "symbols";
  card.right = p.right();
  card.verdict = run.class_name(p.predicted);
  if (p.predicted >= 0 &&
      p.predicted < static_cast<std::int64_t>(p.probabilities.size())) {
    card.verdict += fmt::format(
        ", {:.0f} %",
        100 * p.probabilities[static_cast<std::size_t>(p.predicted)]);
  }
  if (!card.right) card.truth = "is " + run.class_name(p.label);
  return card;
}

void add_samples(Page& page, const RunReport& report) {
  bool first = true;
  for (const std::string& task : distinct(report, &Run::task)) {
    // One run a task: the most accurate that kept its samples.
    const Run* best = nullptr;
    for (const Run& run : report.runs) {
      if (run.task == task && !run.predictions.empty() &&
          (best == nullptr || run.accuracy() > best->accuracy())) {
        best = &run;
      }
    }
    if (best == nullptr) continue;
    if (first) page.add_heading("Samples of the test set");
    first = false;
    page.add_subheading(fmt::format("{}, as {} sees it", task, best->title));
    for (const bool right : {true, false}) {
      std::vector<SampleCard> cards;
      for (const Prediction& p : best->predictions) {
        if (p.right() == right &&
            cards.size() < (p.pixels.empty() ? kMostTexts : kMostPictures)) {
          cards.push_back(card_of(*best, p));
        }
      }
      if (cards.empty()) continue;
      if (task == data::kTranslationTask) {
        page.add_note(right ? "✓ The reference's own words"
                            : "✗ Other words than the reference's");
      } else {
        page.add_note(right ? "✓ Predicted right, with the model's probability"
                            : "✗ Predicted wrong");
      }
      page.add_samples(cards);
    }
  }
}

}  // namespace

Page report_page(const RunReport& report) {
  Page page(title_of(report));
  page.add_lead(headline(report));
  if (const std::string where = origin(report); !where.empty()) {
    page.add_note(where + ".");
  }
  const std::size_t unfinished = static_cast<std::size_t>(
      std::count_if(report.runs.begin(), report.runs.end(),
                    [](const Run& run) { return !run.finished; }));
  if (unfinished > 0) {
    page.add_paragraph(
        fmt::format("{} not finished; this is what there is so far.",
                    unfinished == 1 ? "One run is"
                                    : fmt::format("{} runs are", unfinished)));
  }
  add_results(page, report);
  add_suite(page, report);
  add_other_results(page, report);
  add_translation(page, report);
  add_curves(page, report);
  add_comparisons(page, report);
  add_psi(page, report);
  add_samples(page, report);
  page.add_heading("Every run");
  page.add_table(runs_table(report));
  page.add_note(
      "Runs at once: those that a sweep let go at once, at most; times and "
      "steps a second of more than one say less (and 1 does not say that "
      "nothing else used the machine). –: not recorded.");
  page.add_list(run_notes(report));
  return page;
}

}  // namespace luna::report
