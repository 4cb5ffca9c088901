#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>

#include "data/order.h"
#include "luna/data/translation.h"

namespace luna::data {
namespace {

using Row = std::span<const int32_t>;

/// Of the streams of a seed, those of the order of batches: order.h's streams
/// count epochs, and an epoch of pairs and one of batches are to differ.
constexpr uint64_t kBatchStreams = uint64_t{1} << 32;

struct Lengths {
  int64_t longer = 0, target = 0;  ///< with a special token
};
Lengths lengths_of(const TranslationPair& pair) {
  return {std::max(std::ssize(pair.source), std::ssize(pair.target)) + 1,
          std::ssize(pair.target) + 1};
}

/// Rows side by side, each between what comes before and behind it; `length`
/// columns, or 0: as many as the longest has.
Sequences lay_out(const std::vector<Row>& rows, std::optional<int32_t> before,
                  std::optional<int32_t> behind, int32_t pad, int64_t columns) {
  const int64_t more = before.has_value() + behind.has_value();
  const auto length = [&](const Row& row) { return std::ssize(row) + more; };
  const auto [shortest, longest] =
      std::ranges::minmax(rows, {}, [](const Row& row) { return row.size(); });
  const int64_t n = columns > 0 ? columns : length(longest);
  const int64_t batch = std::ssize(rows);
  Sequences out{at::full({batch, n}, pad, at::kLong),
                at::empty({batch}, at::kLong),
                columns == 0 && length(shortest) == n};
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
  std::vector<Lengths> lengths(data.size());
  for (int64_t i = 0; i < data.size(); ++i) {
    lengths[i] = lengths_of(data[i]);
    const int64_t needed = bucket_length(lengths[i].longer);
    TORCH_CHECK_VALUE(needed <= max_tokens,
                      "token_batches: max_tokens: expected at least the ",
                      needed, " tokens that pair ", i, " takes, got ",
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
  int64_t bucket = 0;
  for (const int64_t i : order) {
    const int64_t own = bucket_length(lengths[i].longer);
    const bool full = (std::ssize(batch) + 1) * own > max_tokens;
    if (!batch.empty() && (full || own != bucket)) {
      batches.push_back(std::move(batch));
      batch.clear();
    }
    bucket = own;
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

TokenOrder::TokenOrder(const TranslationData& data, int64_t max_tokens,
                       uint64_t seed)
    : data_(&data),
      max_tokens_(max_tokens),
      seed_(seed),
      batches_(token_batches(data, max_tokens, seed, 0)) {
  TORCH_CHECK_VALUE(!batches_.empty(),
                    "TokenOrder: expected at least one pair, got none");
}

const std::vector<int64_t>& TokenOrder::batch(int64_t number) {
  TORCH_CHECK_VALUE(number >= 0,
                    "TokenOrder::batch: number: expected 0 or more, got ",
                    number);
  const int64_t epoch = number / batches_in_epoch();
  if (epoch != epoch_) {
    batches_ = token_batches(*data_, max_tokens_, seed_, epoch);
    epoch_ = epoch;
  }
  return batches_[number % batches_in_epoch()];
}

int64_t bucket_length(int64_t tokens) {
  constexpr int64_t kUnit = 8;
  const auto below =
      std::bit_floor(static_cast<uint64_t>(std::max<int64_t>(1, tokens - 1)));
  const int64_t unit = std::max(kUnit, static_cast<int64_t>(below / 4));
  return (tokens + unit - 1) / unit * unit;
}

BatchShape token_batch_shape(const TranslationData& data,
                             std::span<const int64_t> indices,
                             int64_t max_tokens) {
  int64_t length = 0;
  for (const int64_t i : indices) {
    length = std::max(length, bucket_length(lengths_of(data[i]).longer));
  }
  return {max_tokens / length, length};
}

Sequences make_sources(std::span<const std::vector<int32_t>> sentences,
                       const TranslationSpecials& specials) {
  TORCH_CHECK_VALUE(!sentences.empty(),
                    "make_sources: expected at least one sentence, got none");
  return lay_out({sentences.begin(), sentences.end()}, {}, specials.end,
                 specials.pad, 0);
}

Batch make_translation_batch(const TranslationData& data,
                             std::span<const int64_t> indices,
                             const TranslationSpecials& specials,
                             const std::optional<BatchShape>& shape) {
  TORCH_CHECK_VALUE(!indices.empty(),
                    "make_translation_batch: indices: expected at least one, "
                    "got none");
  std::vector<Row> sources, targets;
  const int64_t count = std::ssize(indices);
  int64_t wanted = 0, longest = 0;
  for (const int64_t i : indices) {
    const auto [source, target] = data[i];
    sources.push_back(source);
    targets.push_back(target);
    wanted += std::ssize(target) + 1;
    longest = std::max(longest, lengths_of(data[i]).longer);
  }
  const int64_t columns = shape ? shape->length : 0;
  if (shape) {
    TORCH_CHECK_VALUE(count <= shape->rows && longest <= columns,
                      "make_translation_batch: shape: expected room for ",
                      count, " x ", longest, ", got ", shape->rows, " x ",
                      columns);
    wanted = shape->rows * columns;
    sources.resize(shape->rows);
    targets.resize(shape->rows);
  }
  const int32_t pad = specials.pad;
  Batch batch{.first = lay_out(sources, {}, specials.end, pad, columns),
              .second = lay_out(targets, specials.start, {}, pad, columns),
              .labels = at::full({wanted}, kNoLabel, at::kLong),
              .padded_labels = shape.has_value(),
              .indices = {indices.begin(), indices.end()}};
  int64_t* label = batch.labels.mutable_data_ptr<int64_t>();
  for (const Row& target : std::span(targets).first(count)) {
    int64_t* const end = std::copy(target.begin(), target.end(), label);
    *end = specials.end;
    label = shape ? label + columns : end + 1;
  }
  return batch;
}

}  // namespace luna::data
