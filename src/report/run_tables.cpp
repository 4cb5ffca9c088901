#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "luna/data/translation.h"
#include "luna/report/format.h"
#include "luna/report/psi_measures.h"
#include "luna/report/run_report.h"

namespace luna::report {
namespace {

constexpr const char* kNone = "–";

std::string percent(double share) { return fmt::format("{:.2f}", 100 * share); }

std::string percent(const std::optional<Statistic>& s) {
  if (!s) return kNone;
  return percent(s->mean) + (s->sd ? " ± " + percent(*s->sd) : "");
}

template <class Value, class Print>
std::string or_none(const std::optional<Value>& value, Print print) {
  return value ? print(*value) : kNone;
}

/// "3", or "2 of 3" where one has no result yet; "1, validation" of results
/// that are not the test's.
std::string seeds_of(const RunGroup& group) {
  const std::size_t count = group.accuracy ? group.accuracy->count : 0;
  const std::string all = std::to_string(group.runs.size());
  return (count < group.runs.size() ? fmt::format("{} of {}", count, all)
                                    : all) +
         (group.accuracy && !group.tested ? ", validation" : "");
}

std::string minutes_of(const RunGroup& group) {
  return or_none(group.minutes, [](const Statistic& s) {
    return fmt::format("{:.1f}", s.mean);
  });
}

std::string memory_of(const RunGroup& group) {
  return or_none(group.peak_memory,
                 [](const Statistic& s) { return memory_size(s.mean); });
}

std::vector<std::string> tasks_of(const RunReport& report) {
  std::vector<std::string> tasks;
  for (const RunGroup& group : report.groups) {
    if (tasks.empty() || tasks.back() != group.task) {
      tasks.push_back(group.task);
    }
  }
  return tasks;
}

}  // namespace

Table results_table(const RunReport& report) {
  Table table({{"task", false},
               {"attention", false},
               {"paper and row", false},
               {"ours, %"},
               {"paper, %"},
               {"difference"},
               {"reached", false},
               {"seeds", false},
               {"minutes"},
               {"peak memory"},
               {"parameters"}});
  std::string task;
  for (const RunGroup& group : report.groups) {
    if (group.published.empty()) continue;
    if (group.task != task) table.start_group();
    task = group.task;
    for (const PaperRow* published : group.published) {
      const double theirs = published->accuracy.at(group.task);
      table.add_row(
          {group.task, group.title, published->paper + ": " + published->row,
           percent(group.accuracy), fmt::format("{:.2f}", theirs),
           or_none(group.accuracy,
                   [&](const Statistic& ours) {
                     return signed_number(100 * ours.mean - theirs, 2);
                   }),
           or_none(reached(report, group, *published),
                   [](bool is) { return is ? "yes" : "no"; }),
           seeds_of(group), minutes_of(group), memory_of(group),
           or_none(group.parameters, grouped)});
    }
  }
  return table;
}

Table other_results_table(const RunReport& report) {
  Table table({{"task", false},
               {"attention", false},
               {"accuracy, %"},
               {"seeds", false},
               {"minutes"},
               {"peak memory"},
               {"parameters"}});
  std::string task;
  for (const RunGroup& group : report.groups) {
    const bool translates = group.task == data::kTranslationTask;
    if (translates || !group.published.empty()) continue;
    if (group.task != task) table.start_group();
    task = group.task;
    table.add_row({group.task, group.title, percent(group.accuracy),
                   seeds_of(group), minutes_of(group), memory_of(group),
                   or_none(group.parameters, grouped)});
  }
  return table;
}

Table published_table(const RunReport& report) {
  std::vector<std::string> tasks;
  for (const std::string& task : tasks_of(report)) {
    const auto& rows = paper_rows();
    if (std::any_of(rows.begin(), rows.end(), [&](const PaperRow& row) {
          return row.accuracy.contains(task);
        })) {
      tasks.push_back(task);
    }
  }
  std::vector<Column> columns = {{"paper", false}, {"row", false}};
  for (const std::string& task : tasks) columns.push_back({task + ", %"});
  Table table(columns);
  if (tasks.empty()) return table;
  std::string paper;
  for (const PaperRow& row : paper_rows()) {
    std::vector<std::string> cells = {row.paper, row.row};
    bool some = false;
    for (const std::string& task : tasks) {
      const auto found = row.accuracy.find(task);
      some = some || found != row.accuracy.end();
      cells.push_back(found == row.accuracy.end()
                          ? kNone
                          : fmt::format("{:.2f}", found->second));
    }
    if (!some) continue;
    if (row.paper != paper) table.start_group();
    paper = row.paper;
    table.add_row(cells);
  }
  return table;
}

Table comparison_table(const RunReport& report, const Comparison& comparison) {
  const bool published = std::any_of(
      comparison.groups.begin(), comparison.groups.end(),
      [](const Beside& beside) { return beside.published.has_value(); });
  std::vector<Column> columns = {{"attention", false},
                                 {"steps/s"},
                                 {"speed"},
                                 {"peak memory"},
                                 {"memory"}};
  if (published) {
    columns.push_back({"paper's speed"});
    columns.push_back({"paper's memory"});
  }
  Table table(columns);
  for (const Beside& beside : comparison.groups) {
    const RunGroup& group = report.groups[beside.group];
    std::vector<std::string> row = {
        group.title, short_number(group.steps_per_s->mean), times(beside.speed),
        memory_of(group), or_none(beside.memory, times)};
    if (published) {
      row.push_back(or_none(beside.published, [](const PaperSpeed& p) {
        return times(p.speed);
      }));
      row.push_back(or_none(beside.published, [](const PaperSpeed& p) {
        return times(p.memory);
      }));
    }
    table.add_row(row);
  }
  return table;
}

namespace {

std::string alignment(const LearnedPsi& psi, const Kernel& other) {
  return fmt::format("{:.2f}", kernel_alignment(kernel_of(psi.now), other));
}

std::string whole_percent(double share) {
  return fmt::format("{:.0f} %", 100 * share);
}

/// "11 % / 6 %": of queries and of keys.
std::string both_sides(const LearnedPsi& psi,
                       double train::FeatureUse::Side::*share) {
  return or_none(psi.use, [&](const train::FeatureUse& use) {
    return whole_percent(use.query.*share) + " / " +
           whole_percent(use.key.*share);
  });
}

}  // namespace

Table psi_table(const Run& run) {
  using Side = train::FeatureUse::Side;
  Table table({{"layer", false},
               {"u from, to"},
               {"live channels"},
               {"live share"},
               {"live, q / k"},
               {"silent, q / k"},
               {"knots in range"},
               {"change from start"},
               {"channels that differ"},
               {"like a bell"},
               {"like a line"}});
  for (const LearnedPsi& psi : run.psi) {
    table.add_row(
        {psi.layer,
         fmt::format("{:.1f}, {:.1f}{}", psi.u.front(), psi.u.back(),
                     psi.use ? "" : " (assumed)"),
         fmt::format("{} of {}",
                     std::count(psi.live.begin(), psi.live.end(), true),
                     psi.live.size()),
         whole_percent(psi.live_share), both_sides(psi, &Side::live),
         both_sides(psi, &Side::silent), whole_percent(psi.knots_inside),
         psi.change < 0 ? kNone : whole_percent(psi.change),
         fmt::format("{:.1f}", effective_channels(psi.now)),
         alignment(psi, bell_kernel(psi.u)),
         alignment(psi, straight_kernel(psi.u))});
  }
  return table;
}

Table runs_table(const RunReport& report) {
  const auto translates = [](const Run& run) {
    return run.task == data::kTranslationTask;
  };
  const auto& runs = report.runs;
  const std::string unit =
      std::all_of(runs.begin(), runs.end(), translates)    ? "BLEU"
      : std::none_of(runs.begin(), runs.end(), translates) ? "%"
                                                           : "% or BLEU";
  Table table({{"run", false},
               {"task", false},
               {"attention", false},
               {"seed"},
               {"samples"},
               {"steps"},
               {"best at"},
               {"validation, " + unit},
               {"test, " + unit},
               {"steps/s"},
               {"tokens/s"},
               {"loading"},
               {"time"},
               {"runs at once"},
               {"peak memory"},
               {"parameters"},
               {"of attention"}});
  for (const Run& run : report.runs) {
    const auto share = [](double value) { return percent(value); };
    table.add_row(
        {run.name, run.task, run.title, std::to_string(run.seed),
         or_none(run.samples,
                 [](const auto& counts) { return grouped(counts[0]); }),
         or_none(run.steps, grouped), or_none(run.best_step, grouped),
         or_none(run.validation_accuracy, share),
         or_none(run.test_accuracy, share),
         or_none(run.steps_per_s, short_number),
         or_none(run.tokens_per_s, short_number),
         or_none(run.load_share,
                 [](double v) { return fmt::format("{:.1f} %", 100 * v); }),
         or_none(run.seconds, duration), or_none(run.side_by_side, grouped),
         or_none(run.peak_memory, memory_size),
         or_none(run.parameters, grouped),
         or_none(run.attention_parameters, grouped)});
  }
  return table;
}

std::vector<std::string> run_notes(const RunReport& report) {
  std::vector<std::string> lines;
  for (const Run& run : report.runs) {
    std::vector<std::string> notes = run.notes;
    if (run.skipped_steps > 0) {
      notes.push_back(
          fmt::format("{} steps skipped, their loss or gradient "
                      "was not finite",
                      run.skipped_steps));
    }
    if (notes.empty()) continue;
    lines.push_back(fmt::format("{}: {}", run.name, fmt::join(notes, "; ")));
  }
  return lines;
}

std::string report_text(const RunReport& report) {
  std::string out;
  for (const Table& table :
       {results_table(report), suite_table(report), other_results_table(report),
        translation_table(report)}) {
    if (table.empty()) continue;
    out += (out.empty() ? "" : "\n") + table.text();
  }
  for (const Comparison& comparison : report.comparisons) {
    out += "\n" + comparison.title + ": beside softmax\n" +
           comparison_table(report, comparison).text();
  }
  const std::vector<std::string> notes = run_notes(report);
  if (!notes.empty()) out += "\n";
  for (const std::string& line : notes) out += line + "\n";
  return out;
}

}  // namespace luna::report
