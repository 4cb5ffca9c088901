#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <numeric>

#include "data/order.h"
#include "luna/data/translation.h"

namespace luna::data {
namespace {

using Row = std::span<const int32_t>;

/// Of the streams of a seed, those of the order of batches: order.h's streams
/// count epochs, and an epoch of pairs and one of batches are to differ.
constexpr uint64_t kBatchStreams = uint64_t{1} << 32;

struct Lengths {
  int64_t source = 0, target = 0;  ///< with a special token
  int64_t longer() const { return std::max(source, target); }
};
Lengths lengths_of(const TranslationPair& pair) {
  return {std::ssize(pair.source) + 1, std::ssize(pair.target) + 1};
}

/// The special token before a row, or the one behind it.
struct Edges {
  std::optional<int32_t> before{}, behind{};

  int64_t length(const Row& row) const {
    return std::ssize(row) + before.has_value() + behind.has_value();
  }
  /// Gives the end of what it wrote.
  int64_t* write(const Row& row, int64_t* to) const {
    if (before) *to++ = *before;
    to = std::copy(row.begin(), row.end(), to);
    if (behind) *to++ = *behind;
    return to;
  }
};

/// Rows side by side; `columns` of them, or 0: as many as the longest has.
Sequences lay_out(const std::vector<Row>& rows, const Edges& edges, int32_t pad,
                  int64_t columns) {
  const auto [shortest, longest] =
      std::ranges::minmax(rows, {}, [](const Row& row) { return row.size(); });
  const int64_t n = columns > 0 ? columns : edges.length(longest);
  const int64_t batch = std::ssize(rows);
  Sequences out{at::full({batch, n}, pad, at::kLong),
                at::empty({batch}, at::kLong),
                columns == 0 && edges.length(shortest) == n};
  int64_t* id = out.ids.mutable_data_ptr<int64_t>();
  int64_t* lengths = out.lengths.mutable_data_ptr<int64_t>();
  for (const Row& row : rows) {
    edges.write(row, id);
    id += n;
    *lengths++ = edges.length(row);
  }
  return out;
}

/// Rows one after the other, then empty ones, then the filler.
Sequences lay_out_packed(const std::vector<Row>& rows, const Edges& edges,
                         int32_t pad, int64_t tokens,
                         const PackedShape& shape) {
  Sequences out{.ids = at::full({1, tokens}, pad, at::kLong),
                .lengths = at::zeros({shape.pairs}, at::kLong),
                .packed = Packing{at::empty({shape.pairs + 2}, at::kLong),
                                  shape.longest}};
  int64_t* const first = out.ids.mutable_data_ptr<int64_t>();
  int64_t* lengths = out.lengths.mutable_data_ptr<int64_t>();
  int64_t* start = out.packed->starts.mutable_data_ptr<int64_t>();
  int64_t* const starts_end = start + shape.pairs + 1;
  int64_t* id = first;
  for (const Row& row : rows) {
    *start++ = id - first;
    *lengths++ = edges.length(row);
    id = edges.write(row, id);
  }
  std::fill(start, starts_end, id - first);
  *starts_end = tokens;
  return out;
}

std::vector<Lengths> all_lengths(const TranslationData& data) {
  std::vector<Lengths> lengths;
  for (int64_t i = 0; i < data.size(); ++i) {
    lengths.push_back(lengths_of(data[i]));
  }
  return lengths;
}

/// A batch must have room for each pair alone, `needed` tokens of its lengths.
template <class Needed>
void check_max_tokens(const char* who, const std::vector<Lengths>& lengths,
                      int64_t max_tokens, const Needed& needed) {
  TORCH_CHECK_VALUE(max_tokens >= 1, who,
                    ": max_tokens: expected at least 1, got ", max_tokens);
  for (size_t i = 0; i < lengths.size(); ++i) {
    const int64_t tokens = std::invoke(needed, lengths[i]);
    TORCH_CHECK_VALUE(tokens <= max_tokens, who,
                      ": max_tokens: expected at least the ", tokens,
                      " tokens that pair ", i, " takes, got ", max_tokens);
  }
}

using Batches = std::vector<std::vector<int64_t>>;

/// The batches of an epoch in its order.
Batches shuffled(Batches batches, uint64_t seed, int64_t epoch) {
  Batches result;
  for (const int64_t b :
       permutation(std::ssize(batches), seed, kBatchStreams + epoch)) {
    result.push_back(std::move(batches[b]));
  }
  return result;
}

/// In each round every batch gets a pair. `order` is by the targets' lengths,
/// so that these differ little within a round; of the sources the longest goes
/// where there are the fewest tokens of sources yet.
Batches deal(const std::vector<int64_t>& order,
             const std::vector<Lengths>& lengths, int64_t count) {
  Batches batches(count);
  std::vector<int64_t> tokens(count), turn(count);
  std::iota(turn.begin(), turn.end(), 0);
  for (auto first = order.begin(); first != order.end();) {
    const auto last = first + std::min<int64_t>(count, order.end() - first);
    std::vector<int64_t> round(first, last);
    std::ranges::stable_sort(round, std::greater{},
                             [&](int64_t i) { return lengths[i].source; });
    std::ranges::stable_sort(turn, {}, [&](int64_t b) { return tokens[b]; });
    for (size_t k = 0; k < round.size(); ++k) {
      batches[turn[k]].push_back(round[k]);
      tokens[turn[k]] += lengths[round[k]].source;
    }
    first = last;
  }
  return batches;
}

/// Tokens of both sides.
Lengths tokens_of(const std::vector<int64_t>& batch,
                  const std::vector<Lengths>& lengths) {
  Lengths sum;
  for (const int64_t i : batch) {
    sum.source += lengths[i].source;
    sum.target += lengths[i].target;
  }
  return sum;
}

int64_t divide_up(int64_t x, int64_t by) { return (x + by - 1) / by; }

/// Both sides of some pairs.
struct Sides {
  std::vector<Row> sources{}, targets{};

  Sides(const char* who, const TranslationData& data,
        std::span<const int64_t> indices) {
    TORCH_CHECK_VALUE(!indices.empty(), who,
                      ": indices: expected at least one, got none");
    for (const int64_t i : indices) {
      const auto [source, target] = data[i];
      sources.push_back(source);
      targets.push_back(target);
    }
  }
};

Edges of_source(const TranslationSpecials& specials) {
  return {.behind = specials.end};
}
/// What the decoder reads, and what it is to say.
Edges of_target(const TranslationSpecials& specials) {
  return {.before = specials.start};
}
Edges of_labels(const TranslationSpecials& specials) {
  return {.behind = specials.end};
}

}  // namespace

std::vector<std::vector<int64_t>> token_batches(const TranslationData& data,
                                                int64_t max_tokens,
                                                uint64_t seed, int64_t epoch) {
  const std::vector<Lengths> lengths = all_lengths(data);
  check_max_tokens("token_batches", lengths, max_tokens,
                   [](const Lengths& l) { return bucket_length(l.longer()); });
  // Shuffled, then sorted stably: pairs of one length come together anew in
  // each epoch.
  std::vector<int64_t> order = permutation(data.size(), seed, epoch);
  std::ranges::stable_sort(order, {}, [&](int64_t i) {
    return std::pair(lengths[i].longer(), lengths[i].target);
  });
  Batches batches;
  std::vector<int64_t> batch;
  int64_t bucket = 0;
  for (const int64_t i : order) {
    const int64_t own = bucket_length(lengths[i].longer());
    const bool full = (std::ssize(batch) + 1) * own > max_tokens;
    if (!batch.empty() && (full || own != bucket)) {
      batches.push_back(std::move(batch));
      batch.clear();
    }
    bucket = own;
    batch.push_back(i);
  }
  if (!batch.empty()) batches.push_back(std::move(batch));
  return shuffled(std::move(batches), seed, epoch);
}

std::vector<std::vector<int64_t>> packed_batches(const TranslationData& data,
                                                 int64_t max_tokens,
                                                 uint64_t seed, int64_t epoch) {
  const std::vector<Lengths> lengths = all_lengths(data);
  check_max_tokens("packed_batches", lengths, max_tokens, &Lengths::longer);
  // The order of pairs of the same lengths alone differs between epochs.
  std::vector<int64_t> order = permutation(data.size(), seed, epoch);
  std::ranges::stable_sort(order, std::greater{}, [&](int64_t i) {
    return std::pair(lengths[i].target, lengths[i].source);
  });
  int64_t count = divide_up(tokens_of(order, lengths).longer(), max_tokens);
  while (true) {
    Batches batches = deal(order, lengths, count);
    int64_t fullest = 0;
    for (const auto& batch : batches) {
      fullest = std::max(fullest, tokens_of(batch, lengths).longer());
    }
    if (fullest <= max_tokens) return shuffled(std::move(batches), seed, epoch);
    count =
        std::min(std::max(count + 1, divide_up(count * fullest, max_tokens)),
                 data.size());
  }
}

TokenOrder::TokenOrder(const TranslationData& data, int64_t max_tokens,
                       uint64_t seed, bool packed)
    : data_(&data),
      max_tokens_(max_tokens),
      seed_(seed),
      packed_(packed),
      batches_(make(0)) {
  TORCH_CHECK_VALUE(!batches_.empty(),
                    "TokenOrder: expected at least one pair, got none");
}

std::vector<std::vector<int64_t>> TokenOrder::make(int64_t epoch) const {
  return packed_ ? packed_batches(*data_, max_tokens_, seed_, epoch)
                 : token_batches(*data_, max_tokens_, seed_, epoch);
}

const std::vector<int64_t>& TokenOrder::batch(int64_t number) {
  TORCH_CHECK_VALUE(number >= 0,
                    "TokenOrder::batch: number: expected 0 or more, got ",
                    number);
  const int64_t epoch = number / batches_in_epoch();
  if (epoch != epoch_) {
    batches_ = make(epoch);
    epoch_ = epoch;
  }
  return batches_[number % batches_in_epoch()];
}

int64_t bucket_length(int64_t tokens) {
  constexpr int64_t kUnit = 8;
  const auto below =
      std::bit_floor(static_cast<uint64_t>(std::max<int64_t>(1, tokens - 1)));
  const int64_t unit = std::max(kUnit, static_cast<int64_t>(below / 4));
  return divide_up(tokens, unit) * unit;
}

BatchShape token_batch_shape(const TranslationData& data,
                             std::span<const int64_t> indices,
                             int64_t max_tokens) {
  int64_t length = 0;
  for (const int64_t i : indices) {
    length = std::max(length, bucket_length(lengths_of(data[i]).longer()));
  }
  return {max_tokens / length, length};
}

PackedShape packed_shape(const TranslationData& data,
                         std::span<const std::vector<int64_t>> batches) {
  constexpr int64_t kUnit = 64;  // of tokens: a tile of the kernels
  const std::vector<Lengths> lengths = all_lengths(data);
  PackedShape shape;
  TORCH_CHECK_VALUE(!batches.empty(),
                    "packed_shape: expected at least one batch, got none");
  Lengths least = tokens_of(batches.front(), lengths), most = least;
  for (const std::vector<int64_t>& batch : batches) {
    const Lengths own = tokens_of(batch, lengths);
    shape.pairs = std::max(shape.pairs, std::ssize(batch));
    least = {std::min(least.source, own.source),
             std::min(least.target, own.target)};
    most = {std::max(most.source, own.source),
            std::max(most.target, own.target)};
    for (const int64_t i : batch) {
      shape.longest = std::max(shape.longest, lengths[i].longer());
    }
  }
  // A query of the filler must find a key: its source is not empty, either.
  const auto room = [](int64_t tokens) {
    return divide_up(tokens + 1, kUnit) * kUnit;
  };
  shape.source = room(most.source);
  shape.target = room(most.target);
  shape.longest = std::max({shape.longest, shape.source - least.source,
                            shape.target - least.target});
  return shape;
}

Sequences make_sources(std::span<const std::vector<int32_t>> sentences,
                       const TranslationSpecials& specials) {
  TORCH_CHECK_VALUE(!sentences.empty(),
                    "make_sources: expected at least one sentence, got none");
  return lay_out({sentences.begin(), sentences.end()}, of_source(specials),
                 specials.pad, 0);
}

Batch make_translation_batch(const TranslationData& data,
                             std::span<const int64_t> indices,
                             const TranslationSpecials& specials,
                             const std::optional<BatchShape>& shape) {
  Sides sides("make_translation_batch", data, indices);
  auto& [sources, targets] = sides;
  const int64_t count = std::ssize(indices);
  int64_t wanted = 0, longest = 0;
  for (const int64_t i : indices) {
    const Lengths own = lengths_of(data[i]);
    wanted += own.target;
    longest = std::max(longest, own.longer());
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
  Batch batch{.first = lay_out(sources, of_source(specials), pad, columns),
              .second = lay_out(targets, of_target(specials), pad, columns),
              .labels = at::full({wanted}, kNoLabel, at::kLong),
              .padded_labels = shape.has_value(),
              .indices = {indices.begin(), indices.end()}};
  int64_t* label = batch.labels.mutable_data_ptr<int64_t>();
  for (const Row& target : std::span(targets).first(count)) {
    int64_t* const end = of_labels(specials).write(target, label);
    label = shape ? label + columns : end;
  }
  return batch;
}

Batch make_packed_translation_batch(const TranslationData& data,
                                    std::span<const int64_t> indices,
                                    const TranslationSpecials& specials,
                                    const PackedShape& shape) {
  const Sides sides("make_packed_translation_batch", data, indices);
  const auto& [sources, targets] = sides;
  Lengths tokens;
  int64_t longest = 0;
  for (const int64_t i : indices) {
    const Lengths own = lengths_of(data[i]);
    tokens.source += own.source;
    tokens.target += own.target;
    longest = std::max(longest, own.longer());
  }
  longest = std::max(
      {longest, shape.source - tokens.source, shape.target - tokens.target});
  TORCH_CHECK_VALUE(
      std::ssize(indices) <= shape.pairs && tokens.source < shape.source &&
          tokens.target < shape.target && longest <= shape.longest,
      "make_packed_translation_batch: shape: expected room for ",
      std::ssize(indices), " pairs of ", tokens.source, " and ", tokens.target,
      " tokens with a filler, sequences of ", longest, ", got ", shape.pairs,
      ", ", shape.source, ", ", shape.target, " and ", shape.longest);
  Batch batch{.first = lay_out_packed(sources, of_source(specials),
                                      specials.pad, shape.source, shape),
              .second = lay_out_packed(targets, of_target(specials),
                                       specials.pad, shape.target, shape),
              .labels = at::full({shape.target}, kNoLabel, at::kLong),
              .padded_labels = true,
              .indices = {indices.begin(), indices.end()}};
  int64_t* label = batch.labels.mutable_data_ptr<int64_t>();
  for (const Row& target : targets) {
    label = of_labels(specials).write(target, label);
  }
  return batch;
}

}  // namespace luna::data
