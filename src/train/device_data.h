#pragma once

#include <luna/data/batch.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ops/gather_sequences.h"

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

  /// The same samples packed, each side in as many tokens as `sizes` has for
  /// it: one number, of pairs two. `filler`: no filler is longer.
  data::Batch gather_packed(const at::Tensor& indices,
                            std::span<const int64_t> sizes,
                            int64_t filler) const;

  /// Tokens of a sample's longer sequence, cut and with [CLS].
  int64_t length(int64_t index) const;
  /// Of one of its sequences; side 1 is there for pairs alone.
  int64_t tokens(int64_t index, int64_t side) const {
    return sequence_length(sides() * index + side);
  }
  int64_t sides() const { return info_.pairs ? 2 : 1; }
  /// The greatest length of all samples.
  int64_t longest() const { return longest_; }
  /// Of all sequences.
  double mean_length() const;
  /// Why samples cannot be packed; empty if they can.
  std::string refuses_packed() const;
  int64_t size() const { return labels_.size(0); }
  const data::TaskInfo& info() const { return info_; }

 private:
  int64_t sequence_length(int64_t sequence) const;
  ops::GatherOptions gather_options(int64_t length) const;
  data::Sequences gather_tokens(const at::Tensor& indices,
                                int64_t length) const;

  data::TaskInfo info_;
  data::BatchOptions form_;
  std::vector<int64_t> starts_{};  ///< the offsets, on the host
  at::Tensor ids_, offsets_, labels_;
  int64_t longest_ = 1, shortest_ = 0;
};

}  // namespace luna::train
