#include "train/device_data.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/index_select.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "data/labels.h"

namespace luna::train {

DeviceData::DeviceData(const data::Dataset& data,
                       const data::BatchOptions& form,
                       const c10::Device& device, bool black)
    : info_(data.info()), form_(form) {
  starts_ = {0};
  const auto end_after = [&](const auto& sequence) {
    starts_.push_back(starts_.back() + std::ssize(sequence));
  };
  const bool tokens = data.size() > 0 && !data[0].tokens.empty();
  const at::Tensor labels = data::empty_labels(info_, data.size());
  for (int64_t i = 0; i < data.size(); ++i) {
    const data::Sample sample = data[i];
    tokens ? end_after(sample.tokens) : end_after(sample.ids);
    if (info_.pairs) end_after(sample.second);
    data::put_label(labels, i, sample);
  }
  const at::Tensor ids =
      at::empty({starts_.back()}, tokens ? at::kInt : at::kByte);
  if (tokens) {
    int32_t* to = ids.mutable_data_ptr<int32_t>();
    for (int64_t i = 0; i < data.size(); ++i) {
      to = std::ranges::copy(data[i].tokens, to).out;
    }
  } else {
    uint8_t* to = ids.mutable_data_ptr<uint8_t>();
    for (int64_t i = 0; i < data.size(); ++i) {
      const data::Sample sample = data[i];
      to = std::ranges::copy(sample.ids, to).out;
      to = std::ranges::copy(sample.second, to).out;
    }
  }
  shortest_ = std::numeric_limits<int64_t>::max();
  for (int64_t s = 0; s + 1 < std::ssize(starts_); ++s) {
    longest_ = std::max(longest_, sequence_length(s));
    shortest_ = std::min(shortest_, sequence_length(s));
  }
  if (!black && info_.height > 0) {
    for (int64_t s = 0; s + 1 < std::ssize(starts_); ++s) {
      const int64_t cls = form_.cls ? 1 : 0;
      const uint8_t* const first = ids.const_data_ptr<uint8_t>() + starts_[s];
      const uint8_t* const end = first + sequence_length(s) - cls;
      seen_.push_back(end - first - std::count(first, end, 0) + cls);
    }
  }
  ids_ = ids.to(device);
  labels_ = labels.to(device);
  offsets_ = at::from_blob(starts_.data(), {std::ssize(starts_)}, at::kLong)
                 .to(device, at::kLong, /*non_blocking=*/false, /*copy=*/true);
}

int64_t DeviceData::sequence_length(int64_t sequence) const {
  const int64_t ids = starts_[sequence + 1] - starts_[sequence];
  return (form_.max_length > 0 ? std::min(ids, form_.max_length) : ids) +
         (form_.cls ? 1 : 0);
}

int64_t DeviceData::length(int64_t index) const {
  if (!info_.pairs) return sequence_length(index);
  return std::max(sequence_length(2 * index), sequence_length(2 * index + 1));
}

template <class Value>
double DeviceData::mean_of(Value value) const {
  const int64_t sequences = std::ssize(starts_) - 1;
  double sum = 0;
  for (int64_t s = 0; s < sequences; ++s) {
    sum += value(static_cast<double>(sequence_tokens(s)));
  }
  return sum / static_cast<double>(sequences);
}

double DeviceData::mean_tokens() const {
  return mean_of([](double tokens) { return tokens; });
}

double DeviceData::spread_of_tokens() const {
  const double mean = mean_tokens();
  return std::sqrt(
      mean_of([&](double tokens) { return std::pow(tokens - mean, 2); }));
}

std::string DeviceData::refuses_packed() const {
  if (leaves_out_black()) return {};
  if (info_.height > 0) return info_.task + ", a task of pictures";
  if (ids_.scalar_type() != at::kByte) return info_.task + ", a task of tokens";
  return {};
}

ops::GatherOptions DeviceData::gather_options(int64_t length) const {
  return {.length = length,
          .max_length = form_.max_length,
          .cls = form_.cls ? data::cls_id(info_) : -1,
          .pad = data::pad_id(info_),
          .height = info_.height,
          .width = info_.width};
}

data::Sequences DeviceData::gather_tokens(const at::Tensor& indices,
                                          int64_t length) const {
  const at::Tensor starts = offsets_.index_select(0, indices);
  at::Tensor lengths = offsets_.index_select(0, indices.add(1)).sub(starts);
  if (form_.max_length > 0) lengths = lengths.clamp_max(form_.max_length);
  const at::Tensor column = at::arange(length, offsets_.options());
  const at::Tensor place =
      starts.unsqueeze(1).add(column).clamp_max(ids_.size(0) - 1);
  const at::Tensor ids =
      ids_.index_select(0, place.flatten()).view_as(place).to(at::kLong);
  return {ids.masked_fill(column.ge(lengths.unsqueeze(1)), data::pad_id(info_)),
          lengths, shortest_ == length};
}

data::Batch DeviceData::gather(const at::Tensor& indices, int64_t length,
                               const std::optional<at::Tensor>& moves) const {
  const auto sequences = [&](const at::Tensor& which) {
    const auto [ids, lengths] = ops::gather_sequences(
        ids_, offsets_, which, moves, gather_options(length));
    return data::Sequences{ids, lengths, shortest_ == length};
  };
  data::Batch batch;
  batch.labels = labels_.index_select(0, indices);
  if (ids_.scalar_type() == at::kInt) {
    batch.first = gather_tokens(indices, length);
  } else if (info_.pairs) {
    batch.first = sequences(indices.mul(2));
    batch.second = sequences(indices.mul(2).add(1));
  } else {
    batch.first = sequences(indices);
  }
  return batch;
}

data::Batch DeviceData::gather_seen(const at::Tensor& indices,
                                    const data::Room& room) const {
  data::Batch batch = gather(indices, longest_);
  batch.first.room = room;
  return batch;
}

data::Batch DeviceData::gather_packed(const at::Tensor& indices,
                                      std::span<const int64_t> sizes,
                                      int64_t filler) const {
  const auto sequences = [&](const at::Tensor& which, int64_t side) {
    const auto [row, lengths, starts] =
        ops::gather_packed(ids_, offsets_, which, gather_options(sizes[side]));
    return data::Sequences{
        .ids = row,
        .lengths = lengths,
        .packed = data::Packing{starts, std::max(longest_, filler)}};
  };
  data::Batch batch;
  batch.labels = labels_.index_select(0, indices);
  if (info_.pairs) {
    batch.first = sequences(indices.mul(2), 0);
    batch.second = sequences(indices.mul(2).add(1), 1);
  } else {
    batch.first = sequences(indices, 0);
  }
  return batch;
}

}  // namespace luna::train
