#include <fmt/format.h>

#include <set>

#include "luna/data/translation.h"
#include "luna/report/format.h"
#include "luna/report/run_report.h"

namespace luna::report {
namespace {

constexpr const char* kReference = "softmax";

std::string bleu(const std::optional<Statistic>& s) {
  if (!s) return "–";
  return fmt::format("{:.2f}", s->mean) +
         (s->sd ? fmt::format(" ± {:.2f}", *s->sd) : "");
}

/// Out of 100, of the test of the run's own data.
std::optional<Statistic> own_test(const RunGroup& group) {
  if (!group.tested) return std::nullopt;
  Statistic s = *group.accuracy;
  s.mean *= 100;
  if (s.sd) *s.sd *= 100;
  return s;
}

std::optional<Statistic> score_of(const RunGroup& group,
                                  const std::string& test) {
  if (test.empty()) return own_test(group);
  const auto found = group.scores.find(test);
  return found == group.scores.end() ? std::nullopt
                                     : std::optional(found->second);
}

/// Without the data, which has a column of its own.
std::string mechanism(const RunGroup& group) {
  const std::string tail = " on " + group.data;
  return group.title.ends_with(tail)
             ? group.title.substr(0, group.title.size() - tail.size())
             : group.title;
}

const RunGroup* softmax_on(const RunReport& report, const RunGroup& like) {
  for (const RunGroup& group : report.groups) {
    if (group.task == like.task && group.data == like.data &&
        report.runs[group.runs[0]].attention == kReference) {
      return &group;
    }
  }
  return nullptr;
}

}  // namespace

Table translation_table(const RunReport& report) {
  std::set<std::string> tests = {""};  // "": the test of the data's folder
  for (const RunGroup& group : report.groups) {
    for (const auto& [name, score] : group.scores) tests.insert(name);
  }
  std::vector<Column> columns = {{"data", false}, {"attention", false},
                                 {"parameters"},  {"minutes"},
                                 {"peak memory"}, {"seeds"}};
  for (const std::string& test : tests) {
    columns.push_back({(test.empty() ? "its test" : test) + ", BLEU"});
    columns.push_back({"beside softmax"});
  }
  Table table(columns);
  std::string data;
  for (const RunGroup& group : report.groups) {
    if (group.task != data::kTranslationTask) continue;
    if (!data.empty() && group.data != data) table.start_group();
    data = group.data;
    std::vector<std::string> row = {
        group.data,
        mechanism(group),
        group.parameters ? grouped(*group.parameters) : "–",
        group.minutes ? fmt::format("{:.1f}", group.minutes->mean) : "–",
        group.peak_memory ? memory_size(group.peak_memory->mean) : "–",
        std::to_string(group.runs.size())};
    const RunGroup* const softmax = softmax_on(report, group);
    for (const std::string& test : tests) {
      const auto ours = score_of(group, test);
      row.push_back(bleu(ours));
      const auto theirs = softmax == nullptr || softmax == &group
                              ? std::nullopt
                              : score_of(*softmax, test);
      row.push_back(ours && theirs ? signed_number(ours->mean - theirs->mean, 2)
                                   : "–");
    }
    table.add_row(row);
  }
  return table;
}

}  // namespace luna::report
