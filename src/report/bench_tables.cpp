#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "luna/report/bench_report.h"
#include "luna/report/format.h"

namespace luna::report {

using bench::Crossover;
using bench::Measurement;
using bench::Mode;
using bench::Results;

namespace {

std::string with_spread(const Measurement* m) {
  if (m == nullptr) return "–";
  const std::string time = short_number(m->time.median * 1e3);
  if (m->time.runs == 1) return time + "  once";
  return fmt::format("{} ±{:2.0f} %", time, 100 * m->time.spread());
}

std::string speed(const Results& results, const Measurement* m) {
  if (m == nullptr) return "–";
  const auto ratio = results.speed_up(*m);
  return ratio ? times(*ratio) : "–";
}

bool measured(const Results& results, Mode mode) {
  return std::any_of(results.measurements.begin(), results.measurements.end(),
                     [&](const Measurement& m) { return m.mode == mode; });
}

}  // namespace

std::string machine_line(const bench::Machine& machine) {
  return fmt::format("{} thread{} of {} ({}), torch {}, luna {}",
                     machine.threads, machine.threads == 1 ? "" : "s",
                     machine.cpu, machine.isa, machine.torch_version,
                     machine.luna_version);
}

std::string work_line(const bench::Settings& s) {
  const std::string model = s.model.empty() ? "" : s.model + "; ";
  return fmt::format("{}{} tokens × {} heads × {}, {}{}", model,
                     grouped(s.tokens), s.heads, s.width, s.dtype,
                     s.causal ? ", causal" : "");
}

std::string attention_title(const std::string& name,
                            const bench::Settings& settings) {
  if (name == bench::kSdpaPair) return "2 × SDPA";
  if (name == "nested") {
    return fmt::format("nested-{}", settings.packed_length);
  }
  return name;
}

Table bench_table(const Results& results) {
  const bool forward = measured(results, Mode::kForward);
  const bool both = measured(results, Mode::kForwardBackward);
  std::vector<Column> columns = {{"n"}, {"attention", false}};
  if (forward) {
    columns.push_back({"forward, ms"});
    columns.push_back({"speed"});
  }
  if (both) {
    columns.push_back({"with backward, ms"});
    columns.push_back({"speed"});
  }
  columns.push_back({"peak MiB"});
  Table table(columns);

  std::set<std::int64_t> lengths;
  for (const Measurement& m : results.measurements) lengths.insert(m.length);
  for (const std::int64_t length : lengths) {
    table.start_group();
    for (const std::string& name : results.attentions()) {
      const Measurement* one = results.find(name, Mode::kForward, length);
      const Measurement* two =
          results.find(name, Mode::kForwardBackward, length);
      if (one == nullptr && two == nullptr) continue;
      std::vector<std::string> row = {grouped(length),
                                      attention_title(name, results.settings)};
      for (const auto& [wanted, m] :
           {std::pair{forward, one}, std::pair{both, two}}) {
        if (!wanted) continue;
        row.push_back(with_spread(m));
        row.push_back(speed(results, m));
      }
      const Measurement* largest = two != nullptr ? two : one;
      row.push_back(
          short_number(static_cast<double>(largest->peak) / (1 << 20)));
      table.add_row(row);
    }
  }
  return table;
}

Table crossover_table(const Results& results) {
  const std::vector<Crossover> all = bench::crossovers(results);
  const auto cell = [&](const std::string& attention, Mode mode) {
    for (const Crossover& c : all) {
      if (c.attention != attention || c.mode != mode) continue;
      const std::string n = grouped(std::llround(c.length));
      switch (c.kind) {
        case Crossover::Kind::kFromTheStart:
          return "≤ " + n;
        case Crossover::Kind::kBetween:
          return "≈ " + n;
        case Crossover::Kind::kNotReached:
          return "> " + n;
      }
    }
    return std::string("–");
  };
  std::vector<Column> columns = {{"never slower than softmax from n", false}};
  std::vector<Mode> modes;
  for (const auto& [mode, title] :
       {std::pair{Mode::kForward, "forward"},
        std::pair{Mode::kForwardBackward, "with backward"}}) {
    if (!measured(results, mode)) continue;
    columns.push_back({title});
    modes.push_back(mode);
  }
  Table table(columns);
  std::string last;
  for (const Crossover& c : all) {
    if (c.attention == last) continue;
    last = c.attention;
    std::vector<std::string> row = {
        attention_title(c.attention, results.settings)};
    for (const Mode mode : modes) row.push_back(cell(c.attention, mode));
    table.add_row(row);
  }
  return table;
}

std::vector<std::string> peer_notes(const Results& results) {
  const std::vector<std::string> names = results.attentions();
  const auto measured = [&](std::string_view name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  std::vector<std::string> notes;
  if (measured(bench::kPlainFormula)) {
    notes.push_back(
        "plain: universal attention as its paper lists it, hidden layers in "
        "memory");
  }
  if (measured(bench::kSdpaPair)) {
    notes.push_back("2 × SDPA: nested attention as two calls of torch's");
  }
  return notes;
}

std::vector<std::string> skip_lines(const Results& results) {
  // reason -> name -> what was left out of it
  std::map<std::string, std::map<std::string, std::string>> reasons;
  for (const std::string& name : results.settings.attentions) {
    std::map<std::string, std::map<std::int64_t, int>> lengths;
    for (const bench::Skip& skip : results.skipped) {
      if (skip.attention != name) continue;
      lengths[skip.reason][skip.length] += skip.mode == Mode::kForward ? 1 : 2;
    }
    for (const auto& [reason, modes] : lengths) {
      std::vector<std::string> cases;
      for (const auto& [length, which] : modes) {
        const bool all = results.settings.modes.size() == 1 || which == 3;
        cases.push_back(grouped(length) + (all          ? ""
                                           : which == 1 ? " forward"
                                                        : " with backward"));
      }
      reasons[reason][attention_title(name, results.settings)] =
          fmt::format("n = {}", fmt::join(cases, ", "));
    }
  }
  std::vector<std::string> lines;
  for (const auto& [reason, names] : reasons) {
    std::map<std::string, std::vector<std::string>> alike;
    for (const auto& [name, cases] : names) alike[cases].push_back(name);
    for (const auto& [cases, who] : alike) {
      lines.push_back(fmt::format("{} left out at {}: {}", fmt::join(who, ", "),
                                  cases, reason));
    }
  }
  return lines;
}

std::string bench_text(const Results& results) {
  std::string out = machine_line(results.machine) + "\n" +
                    work_line(results.settings) +
                    "; speed: times softmax's in the same run\n\n" +
                    bench_table(results).text() + "\n";
  out += crossover_table(results).text();
  out += peer_notes(results).empty() ? "" : "\n";
  for (const std::string& line : peer_notes(results)) out += line + "\n";
  for (const std::string& line : skip_lines(results)) out += line + "\n";
  if (!results.complete) out += "Interrupted: this is what was done.\n";
  return out;
}

std::string comparison_text(const std::vector<bench::Change>& changes,
                            double threshold) {
  Table table({{"n"},
               {"attention", false},
               {"mode", false},
               {"before, ms"},
               {"now, ms"},
               {"now / before"},
               {"", false}});
  int slower = 0;
  for (const bench::Change& c : changes) {
    slower += c.slower ? 1 : 0;
    table.add_row({grouped(c.after.length), c.after.attention,
                   std::string(mode_name(c.after.mode)), with_spread(&c.before),
                   with_spread(&c.after), fmt::format("{:.2f}", c.ratio),
                   c.slower   ? "slower"
                   : c.faster ? "faster"
                              : ""});
  }
  return table.text() +
         fmt::format("\n{} of {} slower by more than {:g} % and the spread\n",
                     slower, changes.size(), 100 * threshold);
}

}  // namespace luna::report
