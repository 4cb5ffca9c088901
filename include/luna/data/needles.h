#pragma once

#include <luna/config/options.h>
#include <luna/data/dataset.h>
#include <luna/data/generate.h>

namespace luna::data {

/// A small task that can be made anywhere and learnt in a minute: in a long
/// row of plain digits a few are marked; the label is the largest of those.
struct NeedlesOptions {
  int64_t length = 256;
  int64_t needles = 8;

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& visit) {
    visit(self.length, {.name = "length",
                        .help = "digits in a row",
                        .minimum = 1,
                        .maximum = 1e6});
    visit(self.needles, {.name = "needles",
                         .help = "most that are marked, of at least one",
                         .minimum = 1,
                         .maximum = 1e6});
  }
};

/// Plain digits are their own ids, marked ones come after them.
enum NeedlesSymbol : uint8_t { kFirstNeedle = 10, kNeedlesSymbols = 20 };

/// `samples` rows, every label as likely as any other. Depends on the
/// arguments alone, not on the number of threads (0: one a core).
std::shared_ptr<Dataset> generate_needles(const NeedlesOptions& options,
                                          int64_t samples, uint64_t seed,
                                          const GenerateProgress& progress = {},
                                          int threads = 0);

}  // namespace luna::data
