#pragma once

#include <luna/bench/decode_bench.h>
#include <luna/report/plot.h>
#include <luna/report/table.h>

#include <string>

namespace luna::report {

/// Every mechanism, batch and position: time of a token of every sentence,
/// beside softmax's, and the state of a sentence.
Table decode_table(const bench::DecodeResults& results);
/// Time over position, of the largest batch.
LinePlot decode_plot(const bench::DecodeResults& results);
/// What was measured and where, the table, what was left out.
std::string decode_text(const bench::DecodeResults& results);

}  // namespace luna::report
