#pragma once

#include <luna/data/batch.h>

#include <optional>
#include <vector>

namespace luna::train {

/// A split as tensors on a device, and batches gathered from it there, with
/// shapes that the host knows.
class DeviceData {
 public:
  /// `form` as make_batch takes it; its pad_to is not used.
  DeviceData(const data::Dataset& data, const data::BatchOptions& form,
             const c10::Device& device);

  /// make_batch of samples `indices` [B] int64, padded to `length`; `moves`
  /// [B,3] (see gather_sequences) where pictures are augmented.
  data::Batch gather(const at::Tensor& indices, int64_t length,
                     const std::optional<at::Tensor>& moves = {}) const;

  /// Tokens of a sample's longer sequence, cut and with [CLS].
  int64_t length(int64_t index) const;
  /// Of all its sequences.
  int64_t tokens(int64_t index) const;
  /// The greatest length of all samples.
  int64_t longest() const { return longest_; }
  int64_t size() const { return labels_.size(0); }
  const data::TaskInfo& info() const { return info_; }

 private:
  int64_t sequence_length(int64_t sequence) const;
  data::Sequences gather_tokens(const at::Tensor& indices,
                                int64_t length) const;

  data::TaskInfo info_;
  data::BatchOptions form_;
  std::vector<int64_t> starts_{};  ///< the offsets, on the host
  at::Tensor ids_, offsets_, labels_;
  int64_t longest_ = 1, shortest_ = 0;
};

}  // namespace luna::train
