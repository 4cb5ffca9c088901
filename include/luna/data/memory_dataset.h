#pragma once

#include <luna/data/dataset.h>

#include <vector>

namespace luna::data {

/// A split in memory: what generators and readers make.
class MemoryDataset final : public Dataset {
 public:
  explicit MemoryDataset(TaskInfo info);

  /// From ready arrays. Sequence s is ids[offsets[s] ... offsets[s + 1]), so
  /// offsets has one entry more than there are sequences; pairs have two
  /// sequences a sample, one after the other.
  MemoryDataset(TaskInfo info, std::vector<uint8_t> ids,
                std::vector<int64_t> offsets, std::vector<int64_t> labels);

  /// Appends a copy. Not while another thread reads.
  void add(const Sample& sample);
  void reserve(int64_t samples, int64_t ids);

  const TaskInfo& info() const override { return info_; }
  int64_t size() const override { return std::ssize(labels_); }
  int64_t longest() const override { return longest_; }
  Sample operator[](int64_t index) const override;

 private:
  void append(std::span<const uint8_t> ids);

  TaskInfo info_;
  std::vector<uint8_t> ids_{};
  std::vector<int64_t> offsets_{0};
  std::vector<int64_t> labels_{};
  int64_t longest_ = 0;
};

}  // namespace luna::data
