#pragma once

#include <luna/config/options.h>
#include <luna/data/dataset.h>
#include <luna/data/generate.h>

#include <string_view>
#include <vector>

namespace luna::data {

/// Which expressions of ListOps are drawn and which are kept. The defaults are
/// those of the Long Range Arena.
struct ListOpsOptions {
  int64_t min_length = 500;
  int64_t max_length = 2000;
  int64_t max_depth = 10;
  int64_t max_args = 10;

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& visit) {
    visit(self.min_length, {.name = "min_length",
                            .help = "keep only what has more symbols",
                            .minimum = 0});
    visit(self.max_length, {.name = "max_length",
                            .help = "keep only what has fewer symbols",
                            .minimum = 2,
                            .maximum = 1e8});
    visit(self.max_depth, {.name = "max_depth",
                           .help = "nodes this deep are digits; the root has "
                                   "depth 1",
                           .minimum = 1,
                           .maximum = 1000});
    visit(self.max_args, {.name = "max_args",
                          .help = "most arguments of an operator",
                          .minimum = 2,
                          .maximum = 1e6});
  }
};

/// Digits are their own ids; then come the operators and the end of a list.
enum ListOpsSymbol : uint8_t {
  kListOpsMin = 10,
  kListOpsMax,
  kListOpsMedian,
  kListOpsSumModulo,
  kListOpsEnd,
  kListOpsSymbols  ///< how many there are
};

/// "[MAX 4 3 [MIN 2 3 ] 1 0 ]"
std::string listops_text(std::span<const uint8_t> ids);
/// The ids of such a text. The parentheses that the files of the Long Range
/// Arena put around every pair are left out.
std::vector<uint8_t> listops_ids(std::string_view text);

/// `samples` distinct expressions with their values. Depends on the arguments
/// alone, not on the number of threads (0: one a core).
std::shared_ptr<Dataset> generate_listops(const ListOpsOptions& options,
                                          int64_t samples, uint64_t seed,
                                          const GenerateProgress& progress = {},
                                          int threads = 0);

}  // namespace luna::data
