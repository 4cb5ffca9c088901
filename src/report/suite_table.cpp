#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <vector>

#include "luna/report/format.h"
#include "luna/report/paper_recipes.h"
#include "luna/report/run_report.h"

namespace luna::report {
namespace {

struct Task {
  const char* name;
  bool averaged;
};
constexpr std::array<Task, 6> kTasks = {{{"listops", true},
                                         {"text", true},
                                         {"retrieval", false},
                                         {"retrieval-imdb", false},
                                         {"image", true},
                                         {"pathfinder", true}}};

/// "L 1", "M 16": changed_options; and whether the memory is what is pooled,
/// which the nested paper has rows of its own for.
std::vector<std::string> options_of(const Run& run) {
  std::vector<std::string> options;
  for (const auto& [name, value] : changed_options(run)) {
    options.push_back(fmt::format("{} {}", name, config::to_string(value)));
  }
  if (run.config->model.pooling == "memory") options.push_back("memory pooled");
  return options;
}

struct Line {
  const Run* first = nullptr;
  std::string paper{};  ///< whose recipe all of them are trained by
  std::vector<std::string> options{};
  std::map<std::string, const RunGroup*> groups{};  ///< by task

  /// One task is no suite.
  bool is_shown() const {
    return std::ranges::count_if(kTasks, [&](const Task& task) {
             return groups.contains(task.name);
           }) > 1;
  }
  bool has(const std::string& option) const {
    return std::ranges::find(options, option) != options.end();
  }
};

/// A mechanism with its options by a paper's recipe, over all tasks, is a line;
/// in the order of the groups. What is trained otherwise is in none.
std::vector<Line> lines_of(const RunReport& report) {
  std::vector<Line> lines;
  for (const RunGroup& group : report.groups) {
    const Run& run = report.runs[group.runs[0]];
    if (!run.config || !group.accuracy) continue;
    const PaperRecipe* recipe = recipe_of(*run.config);
    if (recipe == nullptr) continue;
    Line added = {&run, recipe->paper, options_of(run), {}};
    auto line = std::ranges::find_if(lines, [&](const Line& other) {
      return other.first->title == run.title && other.paper == added.paper &&
             other.options == added.options;
    });
    if (line == lines.end()) line = lines.insert(line, std::move(added));
    // Of several the one with most seeds.
    const RunGroup*& kept = line->groups[group.task];
    if (kept == nullptr || kept->runs.size() < group.runs.size()) {
      kept = &group;
    }
  }
  return lines;
}

/// "universal", or "universal (M 16)": by the options that not all lines of
/// that title and recipe have.
std::string name_of(const Line& line, const std::vector<Line>& lines) {
  std::vector<std::string> own;
  for (const std::string& option : line.options) {
    if (std::ranges::any_of(lines, [&](const Line& other) {
          return other.first->title == line.first->title &&
                 other.paper == line.paper && !other.has(option);
        })) {
      own.push_back(option);
    }
  }
  return line.first->title +
         (own.empty() ? "" : fmt::format(" ({})", fmt::join(own, ", ")));
}

/// What a run takes for all steps of its recipe: from the fastest of them,
/// since others may have had the machine for themselves in part alone.
double minutes_for_all_steps(const RunReport& report, const RunGroup& group) {
  double least = 0;
  for (const std::size_t i : group.runs) {
    const Run& run = report.runs[i];
    if (!run.seconds || run.steps.value_or(0) == 0) continue;
    const double steps =
        static_cast<double>(recipe_of(*run.config)->config.steps);
    const double minutes =
        *run.seconds / 60 * steps / static_cast<double>(*run.steps);
    least = least == 0 ? minutes : std::min(least, minutes);
  }
  return least;
}

}  // namespace

Table suite_table(const RunReport& report) {
  std::vector<Column> columns = {{"attention", false}, {"recipe", false}};
  for (const Task& task : kTasks) columns.push_back({task.name});
  columns.push_back({"mean without retrieval"});
  columns.push_back({"minutes in all"});
  columns.push_back({"for all steps"});
  Table table(columns);
  const std::vector<Line> lines = lines_of(report);
  for (const Line& line : lines) {
    if (!line.is_shown()) continue;
    std::vector<std::string> row = {name_of(line, lines), line.paper};
    double sum = 0, minutes = 0, all_steps = 0;
    int averaged = 0, wanted = 0;
    for (const Task& task : kTasks) {
      wanted += task.averaged ? 1 : 0;
      const auto found = line.groups.find(task.name);
      if (found == line.groups.end()) {
        row.push_back("–");
        continue;
      }
      const RunGroup& group = *found->second;
      const double percent = 100 * group.accuracy->mean;
      row.push_back(
          fmt::format("{:.2f}{}", percent, group.tested ? "" : " so far"));
      if (group.minutes) minutes += group.minutes->mean;
      all_steps += minutes_for_all_steps(report, group);
      if (!task.averaged) continue;
      sum += percent;
      ++averaged;
    }
    row.push_back(averaged == wanted ? fmt::format("{:.2f}", sum / averaged)
                                     : "–");
    row.push_back(fmt::format("{:.1f}", minutes));
    row.push_back(fmt::format("{:.1f}", all_steps));
    table.add_row(row);
  }
  return table;
}

}  // namespace luna::report
