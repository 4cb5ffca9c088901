#include "luna/report/decode_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "luna/report/bench_report.h"
#include "luna/report/format.h"

namespace luna::report {
namespace {

using bench::DecodeRow;

/// The same of softmax, if it was measured.
const DecodeRow* softmax_row(const bench::DecodeResults& results,
                             const DecodeRow& row) {
  const auto found = std::ranges::find_if(results.rows, [&](const auto& r) {
    return r.attention == "softmax" && r.batch == row.batch &&
           r.position == row.position && r.skipped.empty();
  });
  return found == results.rows.end() ? nullptr : &*found;
}

}  // namespace

Table decode_table(const bench::DecodeResults& results) {
  Table table({{"attention", false},
               {"batch", true},
               {"position", true},
               {"µs a step", true},
               {"± %", true},
               {"softmax / it", true},
               {"state of a sentence", true}});
  for (const DecodeRow& row : results.rows) {
    const std::string batch = grouped(row.batch), at = grouped(row.position);
    if (!row.skipped.empty()) {
      table.add_row({row.attention, batch, at, "–", "–", "–", row.skipped});
      continue;
    }
    const DecodeRow* const softmax = softmax_row(results, row);
    table.add_row(
        {row.attention, batch, at, fmt::format("{:.1f}", 1e6 * row.time.median),
         fmt::format("{:.0f}", 100 * row.time.spread()),
         softmax == nullptr
             ? "–"
             : fmt::format("{:.2f}", softmax->time.median / row.time.median),
         memory_size(static_cast<double>(row.state_bytes))});
  }
  return table;
}

LinePlot decode_plot(const bench::DecodeResults& results) {
  const int64_t batch = std::ranges::max(results.settings.batches);
  LinePlot plot{
      .title = fmt::format("Time of a decoding step, batch {}", batch),
      .x = {.label = "position", .logarithmic = true, .ticks_at_points = true},
      .y = {.label = "µs a step", .logarithmic = true}};
  int colour = 0;
  for (const std::string& attention : results.settings.attentions) {
    Series series{.name = attention,
                  .colour = attention == "softmax" ? 0 : ++colour,
                  .points = {}};
    for (const DecodeRow& row : results.rows) {
      if (row.attention != attention || row.batch != batch ||
          !row.skipped.empty()) {
        continue;
      }
      series.points.push_back({static_cast<double>(row.position),
                               1e6 * row.time.median, 1e6 * row.time.low,
                               1e6 * row.time.high});
    }
    if (!series.points.empty()) plot.series.push_back(std::move(series));
  }
  return plot;
}

std::string decode_text(const bench::DecodeResults& results) {
  const bench::DecodeSettings& s = results.settings;
  const bool graph = std::ranges::any_of(
      results.rows, [](const DecodeRow& row) { return row.graph; });
  return fmt::format(
      "{} + {} layers of width {}, FFN {}, {} heads, vocabulary {}, {}, on "
      "{}{}\n{}\n\n{}",
      s.layers, s.layers, s.width, grouped(s.ffn), s.heads,
      grouped(s.vocabulary), s.dtype, s.device,
      graph ? ", a step as one CUDA graph" : "", machine_line(results.machine),
      decode_table(results).text());
}

}  // namespace luna::report
