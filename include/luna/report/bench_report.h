#pragma once

#include <string>
#include <vector>

#include "luna/bench/results.h"
#include "luna/report/plot.h"
#include "luna/report/table.h"

namespace luna::report {

/// "2 threads of AMD EPYC (avx512), torch 2.11.0, luna 0.1.0".
std::string machine_line(const bench::Machine& machine);
/// "8,192 tokens × 8 heads × 64, float32".
std::string work_line(const bench::Settings& settings);
/// "nested-16", "2 × SDPA": what a mechanism or peer is called in print.
std::string attention_title(const std::string& name,
                            const bench::Settings& settings);

/// Every length and mechanism: times with spread, ratio to softmax, memory.
Table bench_table(const bench::Results& results);
/// For each mechanism the length from which it is never slower than softmax.
Table crossover_table(const bench::Results& results);
/// What the peers that were measured are.
std::vector<std::string> peer_notes(const bench::Results& results);
/// What was left out and why, equal reasons together.
std::vector<std::string> skip_lines(const bench::Results& results);

LinePlot time_plot(const bench::Results& results, bench::Mode mode);
LinePlot memory_plot(const bench::Results& results, bench::Mode mode);
/// Speed beside softmax at the longest length both were measured at.
RatioBars speed_up_bars(const bench::Results& results);

/// All of it for a terminal.
std::string bench_text(const bench::Results& results);
/// All of it as one HTML page.
std::string bench_page(const bench::Results& results);

/// Before, after and their ratio, and a last line with the verdict.
std::string comparison_text(const std::vector<bench::Change>& changes,
                            double threshold);

}  // namespace luna::report
