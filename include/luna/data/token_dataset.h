#pragma once

#include <luna/data/dataset.h>

#include <vector>

namespace luna::data {

/// A split of tokenised texts in memory. Samples have `tokens`, no ids.
class TokenDataset final : public Dataset {
 public:
  explicit TokenDataset(TaskInfo info);

  /// Appends a copy. Not while another thread reads.
  void add(std::span<const int32_t> tokens, int64_t label,
           std::string_view text = {}, double score = 0);

  const TaskInfo& info() const override { return info_; }
  int64_t size() const override { return std::ssize(labels_); }
  int64_t longest() const override { return longest_; }
  Sample operator[](int64_t index) const override;

 private:
  TaskInfo info_;
  std::vector<int32_t> tokens_{};
  std::vector<int64_t> offsets_{0};
  std::vector<int64_t> labels_{};
  std::vector<double> scores_{};
  std::vector<std::string> texts_{};
  int64_t longest_ = 0;
};

}  // namespace luna::data
