#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "luna/report/run.h"

namespace luna::report {

/// A row of a published table of Long Range Arena.
struct PaperRow {
  std::string paper{};      ///< "universal" or "nested"
  std::string row{};        ///< as the paper calls it
  std::string mechanism{};  ///< the title of ours that it is; empty: none
  std::string variant{};    ///< "gated", "memory pooling"; empty: the plain one
  std::map<std::string, double> accuracy{};  ///< by task, per cent
};

/// Both papers' tables, in their order.
const std::vector<PaperRow>& paper_rows();

/// The rows about the mechanism and the task of a run that is trained by one of
/// the papers' recipes, at the task's own length: that paper's, or the other's
/// where it has none. Retrieval on other data than the papers' has none.
std::vector<const PaperRow*> paper_rows_for(const Run& run);

/// Options of a run's attention that are not its defaults; all of a mechanism
/// that this luna does not know, none without a config.
config::OptionMap changed_options(const Run& run);

/// Training beside softmax in the nested paper's Table 2.
struct PaperSpeed {
  double speed, memory;  ///< times softmax's
};
std::optional<PaperSpeed> paper_speed_for(const Run& run);

}  // namespace luna::report
