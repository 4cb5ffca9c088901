#pragma once

#include <ATen/ATen.h>

#include "ops/cpu/nested.h"

// unpack_attention on the CPU: a long sequence reads a short memory.
//
// A task is one head and one stretch of queries, in tiles: scores = Q (s K)^T
// as [tokens, slots], softmax along the rows, out = P V. Backward makes P
// anew; dq belongs to the tile, dk and dv are summed over a stretch and the
// stretches then added in a fixed order.

namespace luna::cpu {

inline std::vector<Sequence> unpack_sequences(
    const at::Tensor& query, const at::Tensor& key,
    const std::optional<at::Tensor>& cu_seqlens) {
  return list_sequences(query.size(0), query.size(2), key.size(2),
                        cu_seqlens.value_or(at::Tensor()), at::Tensor());
}

inline Splits split_queries(const std::vector<Sequence>& sequences,
                            int64_t heads, int64_t slots) {
  std::vector<int64_t> lengths;
  for (const Sequence& s : sequences) lengths.push_back(s.query_length);
  // At least 2 l: then the parts of dk and dv are no larger than dq.
  return split_tokens(lengths, heads, std::max<int64_t>(256, 2 * padded(slots)),
                      4096);
}

/// Tokens of a tile: all slots of a row are there at once, so fewer where
/// there are very many.
inline int64_t tile_tokens(int64_t slots) {
  return std::clamp<int64_t>((int64_t{1} << 16) / std::max<int64_t>(slots, 1),
                             8, kTokens);
}

/// The memory of one head as the products want it.
template <typename T>
class Memory {
 public:
  Memory(const Rows<T>& key, const Rows<T>& value, int64_t slots, T factor,
         const KeyWeight<T>& weight, bool backward, Scratch<T>& scratch)
      : stride(tile_stride(slots)),
        transposed_key(scratch.take(key.width() * stride)),
        transposed_value(backward ? scratch.take(value.width() * stride)
                                  : nullptr),
        key_(key),
        value_(value),
        weight_(weight),
        slots_(slots),
        factor_(factor),
        key_buffer_(scratch.take(slots * key.width())),
        value_buffer_(scratch.take(slots * value.width())),
        weight_buffer_(scratch.take(padded(slots))) {}

  static int64_t size(int64_t slots, int64_t key_width, int64_t value_width) {
    return (key_width + value_width) * (tile_stride(slots) + slots) +
           padded(slots);
  }

  void move_to(int64_t sequence, int64_t head) {
    if (sequence == sequence_ && head == head_) return;
    sequence_ = sequence;
    head_ = head;
    dense_key = read_dense(key_, sequence, head, 0, slots_, key_buffer_);
    dense_value = read_dense(value_, sequence, head, 0, slots_, value_buffer_);
    transpose_padded(slots_, key_.width(), dense_key, factor_, transposed_key,
                     stride);
    if (transposed_value != nullptr) {
      transpose_padded(slots_, value_.width(), dense_value, T(1),
                       transposed_value, stride);
    }
    const T* given = weight_.at(sequence, head, 0);
    weight = nullptr;
    if (given == nullptr && slots_ % kSlotPad == 0) return;
    if (given == nullptr) {
      std::fill_n(weight_buffer_, slots_, T(1));
    } else {
      std::copy_n(given, slots_, weight_buffer_);
    }
    std::fill_n(weight_buffer_ + slots_, padded(slots_) - slots_, T(0));
    weight = weight_buffer_;
  }

  const int64_t stride;
  Tile<T> dense_key = {}, dense_value = {};
  T* const transposed_key;    ///< factor * K^T, [width, stride]
  T* const transposed_value;  ///< V^T, backward only
  const T* weight = nullptr;  ///< 0 in the padding; null where all are 1

 private:
  const Rows<T>&key_, &value_;
  const KeyWeight<T>& weight_;
  int64_t slots_;
  T factor_;
  T *key_buffer_, *value_buffer_, *weight_buffer_;
  int64_t sequence_ = -1, head_ = -1;
};

}  // namespace luna::cpu
