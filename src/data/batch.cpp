#include "luna/data/batch.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "data/augment.h"
#include "data/blend.h"
#include "data/labels.h"

namespace luna::data {
namespace {

using Row = std::span<const uint8_t>;
using TokenRow = std::span<const int32_t>;

/// Rows side by side: [CLS] if wanted, the ids, then padding.
template <class Row>
Sequences lay_out(const std::vector<Row>& rows, const TaskInfo& info,
                  const BatchOptions& options) {
  const int64_t batch = std::ssize(rows), specials = options.cls ? 1 : 0;
  int64_t longest = 1, shortest = std::ssize(rows.front()) + specials;
  for (const Row& row : rows) {
    longest = std::max(longest, std::ssize(row) + specials);
    shortest = std::min(shortest, std::ssize(row) + specials);
  }
  TORCH_CHECK_VALUE(options.pad_to == 0 || longest <= options.pad_to,
                    "make_batch: pad_to: expected at least the ", longest,
                    " tokens of the longest sample, got ", options.pad_to);
  const int64_t n = options.pad_to > 0 ? options.pad_to : longest;
  Sequences out{at::empty({batch, n}, at::kLong), at::empty({batch}, at::kLong),
                shortest == n};
  int64_t* id = out.ids.mutable_data_ptr<int64_t>();
  int64_t* length = out.lengths.mutable_data_ptr<int64_t>();
  for (const Row& row : rows) {
    int64_t* const end = id + n;
    *length++ = std::ssize(row) + specials;
    if (options.cls) *id++ = cls_id(info);
    id = std::copy(row.begin(), row.end(), id);
    id = std::fill_n(id, end - id, pad_id(info));
  }
  return out;
}

}  // namespace

Batch make_batch(const Dataset& data, std::span<const int64_t> indices,
                 const BatchOptions& options, uint64_t seed, int64_t position) {
  const TaskInfo& info = data.info();
  TORCH_CHECK_VALUE(!indices.empty(),
                    "make_batch: indices: expected at least one, got none");
  TORCH_CHECK_VALUE(options.max_length >= 0 && options.pad_to >= 0,
                    "make_batch: max_length and pad_to: expected no negative "
                    "number, got ",
                    options.max_length, " and ", options.pad_to);
  const bool pictures = info.height > 0 && !info.pairs;
  const BlendShares blends{options.mixup, options.cutmix};
  TORCH_CHECK_VALUE(
      !(options.augment || blends.any()) || pictures,
      "make_batch: augment, mixup, cutmix: expected a task of pictures, got ",
      info.task);
  const int64_t count = std::ssize(indices), pixels = picture_size(info);

  std::vector<uint8_t> augmented(options.augment ? count * pixels : 0);
  std::vector<Row> first(count), second(info.pairs ? count : 0);
  std::vector<TokenRow> tokens;
  const auto cut = [&](auto row) {
    return options.max_length > 0 && options.max_length < std::ssize(row)
               ? row.first(options.max_length)
               : row;
  };
  Batch batch{.labels = empty_labels(info, count),
              .indices = {indices.begin(), indices.end()}};
  if (blends.any()) batch.blends = at::empty({count, Blend::kColumns});
  for (int64_t i = 0; i < count; ++i) {
    Sample sample = data[indices[i]];
    if (!sample.tokens.empty()) tokens.push_back(cut(sample.tokens));
    if (options.augment) {
      const std::span<uint8_t> picture(augmented.data() + i * pixels, pixels);
      augment_picture(sample.ids, info, seed, position + i, picture);
      sample.ids = picture;
    }
    first[i] = cut(sample.ids);
    if (info.pairs) second[i] = cut(sample.second);
    put_label(batch.labels, i, sample);
    if (blends.any()) {
      const Blend blend =
          draw_blend(seed, position + i, blends, info.height, info.width);
      std::ranges::copy(blend.row(), batch.blends.mutable_data_ptr<float>() +
                                         i * Blend::kColumns);
    }
  }
  batch.first = tokens.empty() ? lay_out(first, info, options)
                               : lay_out(tokens, info, options);
  if (info.pairs) batch.second = lay_out(second, info, options);
  return batch;
}

}  // namespace luna::data
