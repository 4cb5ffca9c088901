#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "data/order.h"
#include "luna/data/translation.h"

namespace luna::data {
namespace {

using Row = std::span<const int32_t>;

/// Of the streams of a seed, those of the order of batches: order.h's streams
/// count epochs, and an epoch of pairs and one of batches are to differ.
constexpr uint64_t kBatchStreams = uint64_t{1} << 32;

/// Rows side by side, each between what comes before and behind it.
Sequences lay_out(const std::vector<Row>& rows, std::optional<int32_t> before,
                  std::optional<int32_t> behind, int32_t pad) {
  const int64_t more = before.has_value() + behind.has_value();
  const auto length = [&](const Row& row) { return std::ssize(row) + more; };
  const auto [shortest, longest] =
      std::ranges::minmax(rows, {}, [](const Row& row) { return row.size(); });
  const int64_t n = length(longest), batch = std::ssize(rows);
  Sequences out{at::full({batch, n}, pad, at::kLong),
                at::empty({batch}, at::kLong), length(shortest) == n};
  int64_t* id = out.ids.mutable_data_ptr<int64_t>();
  int64_t* lengths = out.lengths.mutable_data_ptr<int64_t>();
  for (const Row& row : rows) {
    int64_t* at = id;
    if (before) *at++ = *before;
    at = std::copy(row.begin(), row.end(), at);
    if (behind) *at = *behind;
    id += n;
    *lengths++ = length(row);
  }
  return out;
}

}  // namespace

std::vector<std::vector<int64_t>> token_batches(const TranslationData& data,
                                                int64_t max_tokens,
                                                uint64_t seed, int64_t epoch) {
  TORCH_CHECK_VALUE(max_tokens >= 1,
                    "token_batches: max_tokens: expected at least 1, got ",
                    max_tokens);
  struct Lengths {
    int64_t longer = 0, target = 0;
  };
  std::vector<Lengths> lengths(data.size());
  for (int64_t i = 0; i < data.size(); ++i) {
    const auto [source, target] = data[i];
    lengths[i] = {std::max(std::ssize(source), std::ssize(target)) + 1,
                  std::ssize(target) + 1};
    TORCH_CHECK_VALUE(lengths[i].longer <= max_tokens,
                      "token_batches: max_tokens: expected at least the ",
                      lengths[i].longer, " tokens of pair ", i, ", got ",
                      max_tokens);
  }
  // Shuffled, then sorted stably: pairs of one length come together anew in
  // each epoch.
  std::vector<int64_t> order = permutation(data.size(), seed, epoch);
  std::ranges::stable_sort(order, {}, [&](int64_t i) {
    return std::pair(lengths[i].longer, lengths[i].target);
  });
  std::vector<std::vector<int64_t>> batches;
  std::vector<int64_t> batch;
  for (const int64_t i : order) {
    // The last one is the longest.
    const int64_t tokens = (std::ssize(batch) + 1) * lengths[i].longer;
    if (tokens > max_tokens) {
      batches.push_back(std::move(batch));
      batch.clear();
    }
    batch.push_back(i);
  }
  if (!batch.empty()) batches.push_back(std::move(batch));
  std::vector<std::vector<int64_t>> shuffled;
  for (const int64_t b :
       permutation(std::ssize(batches), seed, kBatchStreams + epoch)) {
    shuffled.push_back(std::move(batches[b]));
  }
  return shuffled;
}

Batch make_translation_batch(const TranslationData& data,
                             std::span<const int64_t> indices,
                             const TranslationSpecials& specials) {
  TORCH_CHECK_VALUE(!indices.empty(),
                    "make_translation_batch: indices: expected at least one, "
                    "got none");
  std::vector<Row> sources, targets;
  int64_t wanted = 0;
  for (const int64_t i : indices) {
    const auto [source, target] = data[i];
    sources.push_back(source);
    targets.push_back(target);
    wanted += std::ssize(target) + 1;
  }
  Batch batch{.first = lay_out(sources, {}, specials.end, specials.pad),
              .second = lay_out(targets, specials.start, {}, specials.pad),
              .labels = at::empty({wanted}, at::kLong),
              .indices = {indices.begin(), indices.end()}};
  int64_t* label = batch.labels.mutable_data_ptr<int64_t>();
  for (const Row& target : targets) {
    label = std::copy(target.begin(), target.end(), label);
    *label++ = specials.end;
  }
  return batch;
}

}  // namespace luna::data
