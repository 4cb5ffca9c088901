#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "luna/report/bench_report.h"
#include "luna/report/format.h"
#include "luna/report/page.h"

namespace luna::report {

using bench::Crossover;
using bench::Measurement;
using bench::Mode;
using bench::Results;

namespace {

bool is_peer(const std::string& name) {
  return name == bench::kPlainFormula || name == bench::kSdpaPair;
}

int colour_of(const Results& results, const std::string& name) {
  if (name == bench::kReference) return 0;
  int colour = 1;
  for (const std::string& other : results.attentions()) {
    if (other == name) break;
    if (other != bench::kReference) ++colour;
  }
  return 1 + (colour - 1) % (kColours - 1);
}

Axis length_axis(const Results& results) {
  return {.label = fmt::format("sequence length n ({} tokens in all)",
                               grouped(results.settings.tokens)),
          .logarithmic = true,
          .ticks_at_points = true};
}

template <class ValueOf>
std::vector<Series> series_of(const Results& results, Mode mode,
                              ValueOf value_of) {
  std::vector<Series> all;
  for (const std::string& name : results.attentions()) {
    Series series{attention_title(name, results.settings),
                  colour_of(results, name),
                  is_peer(name),
                  {}};
    for (const Measurement& m : results.measurements) {
      if (m.attention == name && m.mode == mode) {
        series.points.push_back(value_of(m));
      }
    }
    std::sort(series.points.begin(), series.points.end(),
              [](const Point& a, const Point& b) { return a.x < b.x; });
    if (!series.points.empty()) all.push_back(series);
  }
  return all;
}

/// Softmax's time at a length between measured ones, straight on log-log.
double reference_time(const Results& results, Mode mode, double length) {
  const Measurement *below = nullptr, *above = nullptr;
  for (const Measurement& m : results.measurements) {
    if (m.attention != bench::kReference || m.mode != mode) continue;
    const double n = static_cast<double>(m.length);
    if (n <= length && (below == nullptr || m.length > below->length)) {
      below = &m;
    }
    if (n >= length && (above == nullptr || m.length < above->length)) {
      above = &m;
    }
  }
  if (below == nullptr || above == nullptr || below == above) {
    return below != nullptr ? below->time.median : above->time.median;
  }
  const double share = std::log(length / static_cast<double>(below->length)) /
                       std::log(static_cast<double>(above->length) /
                                static_cast<double>(below->length));
  return below->time.median *
         std::pow(above->time.median / below->time.median, share);
}

std::string headline(const Results& results) {
  const Measurement* best = nullptr;
  double best_speed = 1;
  for (const Measurement& m : results.measurements) {
    const auto speed = results.speed_up(m);
    if (!speed || is_peer(m.attention) || *speed <= best_speed) continue;
    best = &m;
    best_speed = *speed;
  }
  if (best == nullptr) return "";
  if (!results.settings.model.empty()) {
    return fmt::format(
        "At n = {}, the model took {} ms {} with {} attention, with softmax {} "
        "ms: {} its speed.",
        grouped(best->length), short_number(best->time.median * 1e3),
        mode_name(best->mode), best->attention,
        short_number(best->time.median * best_speed * 1e3), times(best_speed));
  }
  return fmt::format(
      "At n = {}, {} attention took {} ms {}, softmax attention {} ms: {} "
      "its speed.",
      grouped(best->length), best->attention,
      short_number(best->time.median * 1e3), mode_name(best->mode),
      short_number(best->time.median * best_speed * 1e3), times(best_speed));
}

}  // namespace

LinePlot time_plot(const Results& results, Mode mode) {
  LinePlot plot;
  plot.title = fmt::format("Time of the {} pass against sequence length",
                           mode_name(mode));
  plot.x = length_axis(results);
  plot.y = {.label = "time, ms", .logarithmic = true};
  plot.series = series_of(results, mode, [](const Measurement& m) {
    return Point{static_cast<double>(m.length), m.time.median * 1e3,
                 m.time.low * 1e3, m.time.high * 1e3};
  });
  for (const Crossover& c : bench::crossovers(results)) {
    if (c.mode != mode || c.kind != Crossover::Kind::kBetween) continue;
    plot.marks.push_back({c.length,
                          reference_time(results, mode, c.length) * 1e3,
                          fmt::format("{} from n ≈ {}", c.attention,
                                      grouped(std::llround(c.length))),
                          colour_of(results, c.attention)});
  }
  return plot;
}

LinePlot memory_plot(const Results& results, Mode mode) {
  LinePlot plot;
  plot.title = fmt::format("Peak memory of the {} pass", mode_name(mode));
  plot.x = length_axis(results);
  plot.y = {.label = "peak memory of tensors, MiB", .logarithmic = true};
  plot.series = series_of(results, mode, [](const Measurement& m) {
    const double mib = static_cast<double>(m.peak) / (1 << 20);
    return Point{static_cast<double>(m.length), mib, mib, mib};
  });
  return plot;
}

RatioBars speed_up_bars(const Results& results) {
  RatioBars chart;
  std::set<std::int64_t> lengths;
  for (const Measurement& m : results.measurements) {
    if (m.attention == bench::kReference) lengths.insert(m.length);
  }
  if (lengths.empty()) return chart;
  const std::int64_t longest = *lengths.rbegin();
  chart.title = fmt::format("Speed beside softmax at n = {}", grouped(longest));
  chart.x_label = "times softmax's speed";
  for (const std::string& name : results.attentions()) {
    if (name == bench::kReference) continue;
    for (const Mode mode : {Mode::kForward, Mode::kForwardBackward}) {
      const Measurement* m = results.find(name, mode, longest);
      const auto speed = m != nullptr ? results.speed_up(*m) : std::nullopt;
      if (!speed) continue;
      chart.bars.push_back(
          {attention_title(name, results.settings), *speed,
           times(*speed) + (mode == Mode::kForward ? " forward" : " both"),
           colour_of(results, name)});
    }
  }
  return chart;
}

std::string bench_page(const Results& results) {
  Page page("luna bench: linear attention beside softmax");
  page.add_lead(headline(results));
  page.add_note(machine_line(results.machine) + ". " +
                work_line(results.settings) + ". Measured " + results.created +
                ".");
  if (!results.complete) {
    page.add_paragraph("The run was interrupted; this is what was done.");
  }
  page.add_heading("From which length it pays on this machine");
  page.add_table(crossover_table(results));
  page.add_list(peer_notes(results));
  std::optional<Mode> last;
  for (const Mode mode : {Mode::kForward, Mode::kForwardBackward}) {
    const LinePlot plot = time_plot(results, mode);
    if (plot.series.empty()) continue;
    last = mode;
    page.add_heading(mode == Mode::kForward ? "Time, forward"
                                            : "Time, forward and backward");
    page.add_plot(plot,
                  "Medians; bars where half of the runs spread visibly. Both "
                  "axes logarithmic. A ring marks where a mechanism overtakes "
                  "softmax. Dashed: peers that are no mechanism of luna.");
  }
  if (last) {
    page.add_heading("Memory");
    page.add_plot(
        memory_plot(results, *last),
        fmt::format(
            "The most bytes that tensors held at once during "
            "one {} pass, {} included. Both axes "
            "logarithmic.",
            mode_name(*last),
            results.settings.model.empty() ? "inputs" : "inputs and weights"));
  }
  const RatioBars bars = speed_up_bars(results);
  if (!bars.bars.empty()) {
    page.add_heading(bars.title);
    page.add_bars(bars,
                  "Logarithmic; to the right of 1× is faster than softmax. "
                  "“Both” is forward and backward.");
  }
  page.add_heading("All figures");
  page.add_paragraph(
      "Medians with half the distance of the quartiles; “once” was run a "
      "single time because it is slow. Mechanisms took turns, so ratios are "
      "of one run.");
  page.add_table(bench_table(results));
  page.add_list(skip_lines(results));
  return page.html();
}

}  // namespace luna::report
