#include <c10/util/Exception.h>
#include <luna/data/listops.h>
#include <luna/data/memory_dataset.h>

#include <algorithm>
#include <limits>
#include <unordered_set>

#include "data/blocks.h"
#include "data/listops_expression.h"

namespace luna::data {

namespace {

constexpr int64_t kBlock = 256;  // candidates that a thread takes at once
// Bounds the memory of what is drawn but not yet merged.
constexpr int64_t kLargestWave = 1 << 17;
// So many candidates without a new sample: there will hardly be another.
constexpr int64_t kPatience = 4'000'000;

/// Length of the longest expression there is, or max_length if that is less.
int64_t longest_possible(const ListOpsOptions& options) {
  int64_t length = 1;
  for (int64_t depth = 1; depth < options.max_depth; ++depth) {
    if (length >= options.max_length) break;
    length = 2 + options.max_args * length;
  }
  return std::min(length, options.max_length);
}

void check(const ListOpsOptions& options, int64_t samples) {
  const char* const name = "generate_listops";
  config::check_options(name, options);
  TORCH_CHECK_VALUE(options.min_length + 1 < options.max_length, name,
                    ": expected max_length of at least min_length + 2 (both "
                    "bounds are left out), got min_length ",
                    options.min_length, " and max_length ", options.max_length);
  TORCH_CHECK_VALUE(longest_possible(options) > options.min_length, name,
                    ": expected a min_length that expressions of max_depth ",
                    options.max_depth, " and max_args ", options.max_args,
                    " can exceed (the longest has ", longest_possible(options),
                    " symbols), got ", options.min_length);
  TORCH_CHECK_VALUE(samples >= 0, name,
                    ": expected samples of at least 0, got ", samples);
}

/// The kept candidates of one block, one after the other.
struct Kept {
  std::vector<uint8_t> ids{};
  std::vector<int64_t> ends{};
  std::vector<int64_t> candidates{};
  std::vector<uint8_t> labels{};
};

Kept draw_block(const ListOpsOptions& options, uint64_t seed, int64_t first,
                int64_t last) {
  Kept kept;
  std::vector<uint8_t> ids;
  for (int64_t candidate = first; candidate < last; ++candidate) {
    Random random(seed, static_cast<uint64_t>(candidate));
    int64_t value = 0;
    if (!draw_listops(options, random, ids, value)) continue;
    if (std::ssize(ids) <= options.min_length) continue;
    kept.ids.insert(kept.ids.end(), ids.begin(), ids.end());
    kept.ends.push_back(std::ssize(kept.ids));
    kept.candidates.push_back(candidate);
    kept.labels.push_back(static_cast<uint8_t>(value));
  }
  return kept;
}

/// Samples in the order of their candidates, each but once.
class Collector {
 public:
  explicit Collector(int64_t samples) : samples_(samples) {}

  bool full() const { return size() == samples_; }
  int64_t size() const { return std::ssize(labels_); }
  int64_t last_candidate() const { return last_candidate_; }

  void add(const Kept& kept) {
    int64_t begin = 0;
    for (size_t i = 0; i < kept.ends.size() && !full(); ++i) {
      const int64_t end = kept.ends[i];
      ids_.insert(ids_.end(), kept.ids.begin() + begin, kept.ids.begin() + end);
      begin = end;
      offsets_.push_back(std::ssize(ids_));
      if (seen_.insert(size()).second) {
        labels_.push_back(kept.labels[i]);
        last_candidate_ = kept.candidates[i];
      } else {
        offsets_.pop_back();
        ids_.resize(offsets_.back());
      }
    }
  }

  std::shared_ptr<Dataset> finish() {
    return std::make_shared<MemoryDataset>(
        TaskInfo{
            .task = "listops", .vocabulary = kListOpsSymbols, .classes = 10},
        std::move(ids_), std::move(offsets_), std::move(labels_));
  }

 private:
  std::string_view text(int64_t sample) const {
    return {reinterpret_cast<const char*>(ids_.data()) + offsets_[sample],
            static_cast<size_t>(offsets_[sample + 1] - offsets_[sample])};
  }
  struct Hash {
    const Collector* collector;
    size_t operator()(int64_t sample) const {
      return std::hash<std::string_view>()(collector->text(sample));
    }
  };
  struct Equal {
    const Collector* collector;
    bool operator()(int64_t a, int64_t b) const {
      return collector->text(a) == collector->text(b);
    }
  };

  int64_t samples_;
  int64_t last_candidate_ = -1;
  std::vector<uint8_t> ids_{};
  std::vector<int64_t> offsets_{0};
  std::vector<int64_t> labels_{};
  std::unordered_set<int64_t, Hash, Equal> seen_{16, Hash{this}, Equal{this}};
};

}  // namespace

std::shared_ptr<Dataset> generate_listops(const ListOpsOptions& options,
                                          int64_t samples, uint64_t seed,
                                          const GenerateProgress& progress,
                                          int threads) {
  check(options, samples);
  Collector collector(samples);
  for (int64_t first = 0; !collector.full();) {
    TORCH_CHECK_VALUE(first - collector.last_candidate() <= kPatience,
                      "generate_listops: expected options that allow ", samples,
                      " distinct expressions, got ", collector.size(),
                      " and no new one among the last ", kPatience,
                      " candidates");
    const int64_t wave =
        std::clamp(std::max((samples - collector.size()) * 16, first / 4),
                   kBlock, kLargestWave);
    std::vector<Kept> kept((wave + kBlock - 1) / kBlock);
    for_each_block(wave, kBlock, threads, [&](int64_t begin, int64_t end) {
      kept[begin / kBlock] =
          draw_block(options, seed, first + begin, first + end);
    });
    for (const Kept& block : kept) collector.add(block);
    first += wave;
    if (progress) progress(collector.size(), samples);
  }
  return collector.finish();
}

}  // namespace luna::data
