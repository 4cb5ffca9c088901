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
  /// `form` as make_batch takes it; its pad_to is not used. Without `black`
  /// the tokens of pictures are those that are not black, the id 0.
  DeviceData(const data::Dataset& data, const data::BatchOptions& form,
             const c10::Device& device, bool black = true);

  /// make_batch of samples `indices` [B] int64, padded to `length`; `moves`
  /// [B,3] (see gather_sequences) where pictures are augmented.
  data::Batch gather(const at::Tensor& indices, int64_t length,
                     const std::optional<at::Tensor>& moves = {}) const;

  /// The same samples, with room for those of their tokens that are not black.
  data::Batch gather_seen(const at::Tensor& indices,
                          const data::Room& room) const;

  /// The same samples packed, each side in as many tokens as `sizes` has for
  /// it: one number, of pairs two. `filler`: no filler is longer.
  data::Batch gather_packed(const at::Tensor& indices,
                            std::span<const int64_t> sizes,
                            int64_t filler) const;

  /// Tokens of a sample's longer sequence, cut and with [CLS].
  int64_t length(int64_t index) const;
  /// Of one of its sequences; side 1 is there for pairs alone.
  int64_t tokens(int64_t index, int64_t side) const {
    return sequence_tokens(sides() * index + side);
  }
  bool leaves_out_black() const { return !seen_.empty(); }
  int64_t sides() const { return info_.pairs ? 2 : 1; }
  /// The greatest length of all samples.
  int64_t longest() const { return longest_; }
  /// Mean and standard deviation of all sequences' tokens.
  double mean_tokens() const;
  double spread_of_tokens() const;
  /// Why samples cannot be packed; empty if they can.
  std::string refuses_packed() const;
  int64_t size() const { return labels_.size(0); }
  const data::TaskInfo& info() const { return info_; }

 private:
  int64_t sequence_length(int64_t sequence) const;
  int64_t sequence_tokens(int64_t sequence) const {
    return seen_.empty() ? sequence_length(sequence) : seen_[sequence];
  }
  template <class Value>
  double mean_of(Value value) const;
  ops::GatherOptions gather_options(int64_t length) const;
  data::Sequences gather_tokens(const at::Tensor& indices,
                                int64_t length) const;

  data::TaskInfo info_;
  data::BatchOptions form_;
  std::vector<int64_t> starts_{};  ///< the offsets, on the host
  std::vector<int64_t> seen_{};    ///< tokens that are not black; or empty
  at::Tensor ids_, offsets_, labels_;
  int64_t longest_ = 1, shortest_ = 0;
};

}  // namespace luna::train
