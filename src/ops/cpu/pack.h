#pragma once

#include <ATen/ATen.h>

#include "ops/cpu/nested.h"

// pack_attention on the CPU: a few slots gather a long sequence.
//
// A task is one head and one stretch of keys. It goes through the keys in
// tiles of kTokens and keeps, for each slot, a running maximum, the sum of
// exponentials and the sum of values (online softmax). The score tile stands
// as [tokens, slots], so that neither K nor V is ever transposed: scores =
// K (s Q)^T, out += P^T V. Stretches are merged in a fixed order.
//
// Backward recomputes the tile of P from the saved maximum and normaliser of
// each slot; dk and dv belong to the tile, dq is summed as out was.

namespace luna::cpu {

/// Slots of a tile: kTokens x kPackSlots scores stay in L1.
constexpr int64_t kPackSlots = 64;

inline std::vector<Sequence> pack_sequences(
    const at::Tensor& query, const at::Tensor& key,
    const std::optional<at::Tensor>& cu_seqlens) {
  return list_sequences(key.size(0), query.size(2), key.size(2), at::Tensor(),
                        cu_seqlens.value_or(at::Tensor()));
}

inline Splits split_keys(const std::vector<Sequence>& sequences,
                         int64_t heads) {
  std::vector<int64_t> lengths;
  for (const Sequence& s : sequences) lengths.push_back(s.key_length);
  return split_tokens(lengths, heads, 256, 4096);
}

/// What a task knows of one head of one sequence's query, made once.
template <typename T>
struct HeadQuery {
  HeadQuery(const Rows<T>& rows, int64_t slots, T factor, Scratch<T>& scratch)
      : rows_(rows),
        slots_(slots),
        factor_(factor),
        buffer_(scratch.take(slots * rows.width())),
        stride(tile_stride(slots)),
        transposed(scratch.take(rows.width() * stride)) {}

  /// True where it had to be made.
  bool move_to(int64_t sequence, int64_t head) {
    if (sequence == sequence_ && head == head_) return false;
    sequence_ = sequence;
    head_ = head;
    dense = read_dense(rows_, sequence, head, 0, slots_, buffer_);
    transpose_padded(slots_, rows_.width(), dense, factor_, transposed, stride);
    return true;
  }

 private:
  const Rows<T>& rows_;
  int64_t slots_;
  T factor_;
  T* buffer_;
  int64_t sequence_ = -1, head_ = -1;

 public:
  Tile<T> dense = {};  ///< [slots, width]
  int64_t stride;
  T* transposed;  ///< factor * dense^T, [width, stride]
};

}  // namespace luna::cpu
