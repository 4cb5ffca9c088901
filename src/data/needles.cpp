#include <c10/util/Exception.h>
#include <luna/data/memory_dataset.h>
#include <luna/data/needles.h>

#include "data/blocks.h"
#include "data/random.h"

namespace luna::data {
namespace {

/// Fills `row` and returns its label.
int64_t draw_row(const NeedlesOptions& options, Random random,
                 std::span<uint8_t> row) {
  for (uint8_t& id : row) id = static_cast<uint8_t>(random.below(10));
  const int64_t label = random.below(10);
  const int64_t count =
      random.between(1, std::min(options.needles, options.length));
  for (int64_t placed = 0; placed < count;) {
    uint8_t& id = row[random.below(static_cast<uint32_t>(options.length))];
    if (id >= kFirstNeedle) continue;
    const auto digit = placed == 0 ? label : random.between(0, label);
    id = static_cast<uint8_t>(kFirstNeedle + digit);
    ++placed;
  }
  return label;
}

}  // namespace

std::shared_ptr<Dataset> generate_needles(const NeedlesOptions& options,
                                          int64_t samples, uint64_t seed,
                                          const GenerateProgress& progress,
                                          int threads) {
  const char* const name = "generate_needles";
  config::check_options(name, options);
  TORCH_CHECK_VALUE(samples >= 0, name,
                    ": expected samples of at least 0, got ", samples);
  std::vector<uint8_t> ids(samples * options.length);
  std::vector<int64_t> offsets(samples + 1), labels(samples);
  for_each_block(
      samples, 256, threads,
      [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) {
          offsets[i + 1] = (i + 1) * options.length;
          labels[i] = draw_row(options, Random(seed, static_cast<uint64_t>(i)),
                               {ids.data() + i * options.length,
                                static_cast<size_t>(options.length)});
        }
      },
      progress);
  return std::make_shared<MemoryDataset>(
      TaskInfo{.task = "needles", .vocabulary = kNeedlesSymbols, .classes = 10},
      std::move(ids), std::move(offsets), std::move(labels));
}

}  // namespace luna::data
