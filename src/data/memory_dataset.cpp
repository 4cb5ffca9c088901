#include "luna/data/memory_dataset.h"

#include <algorithm>
#include <utility>

#include "data/sequences.h"

namespace luna::data {

MemoryDataset::MemoryDataset(TaskInfo info) : info_(std::move(info)) {
  check_info("MemoryDataset", info_);
}

MemoryDataset::MemoryDataset(TaskInfo info, std::vector<uint8_t> ids,
                             std::vector<int64_t> offsets,
                             std::vector<int64_t> labels)
    : info_(std::move(info)),
      ids_(std::move(ids)),
      offsets_(std::move(offsets)),
      labels_(std::move(labels)) {
  check_info("MemoryDataset", info_);
  longest_ = check_samples("MemoryDataset", info_, {ids_, offsets_, labels_});
}

void MemoryDataset::reserve(int64_t samples, int64_t ids) {
  ids_.reserve(ids);
  offsets_.reserve(sequences_of(info_) * samples + 1);
  labels_.reserve(samples);
}

void MemoryDataset::append(std::span<const uint8_t> ids) {
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  offsets_.push_back(std::ssize(ids_));
  longest_ = std::max(longest_, std::ssize(ids));
}

void MemoryDataset::add(const Sample& sample) {
  const char* const where = "MemoryDataset::add";
  check_label(where, info_, sample.label);
  check_length(where, info_, std::ssize(sample.ids));
  check_ids(where, info_, sample.ids);
  check_ids(where, info_, sample.second);
  append(sample.ids);
  if (info_.pairs) append(sample.second);
  labels_.push_back(sample.label);
}

Sample MemoryDataset::operator[](int64_t index) const {
  return sample_at(info_, {ids_, offsets_, labels_}, index);
}

}  // namespace luna::data
