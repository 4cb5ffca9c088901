#pragma once

#include <ATen/ATen.h>

#include <string_view>

#include "ops/cpu/nested.h"

// What forward and backward of nested_causal_attention share: the inputs of a
// call, its division among threads, and one thread's chunk of tokens.

namespace luna::cpu {

/// Row distance of the [tokens, tokens] matrices of a chunk.
inline constexpr int64_t kChunkStride = kTokens + kSlotPad;

inline Activation activation_of(std::string_view name) {
  return name == "elu" ? Activation::kElu : Activation::kSoftplus;
}

/// packed_mask as weights [S, padded slots], 0 in the padding; undefined where
/// every column is a slot that takes part.
template <typename T>
at::Tensor slot_weights(const std::optional<at::Tensor>& mask,
                        int64_t sequences, int64_t slots) {
  if (!mask.has_value() && slots % kSlotPad == 0) return at::Tensor();
  at::Tensor weights =
      at::zeros({sequences, padded(slots)}, at::CppTypeToScalarType<T>::value);
  at::Tensor own = weights.narrow(1, 0, slots);
  if (mask.has_value()) {
    own.copy_(*mask);
  } else {
    own.fill_(1);
  }
  return weights;
}

template <typename T>
struct NestedCausalInputs {
  NestedCausalInputs(const at::Tensor& query_, const at::Tensor& pack_key_,
                     const at::Tensor& key_, const at::Tensor& value_,
                     const at::Tensor& packed_query_,
                     const std::optional<at::Tensor>& packed_mask,
                     const std::optional<at::Tensor>& cu_seqlens,
                     std::string_view activation_, double scale_,
                     double dropout_p, const std::optional<at::Tensor>& seed,
                     const std::optional<at::Tensor>& key_state_,
                     const std::optional<at::Tensor>& value_state_,
                     const std::optional<at::Tensor>& count)
      : query(query_),
        pack_key(pack_key_),
        key(key_),
        value(value_),
        packed_query(packed_query_, true),
        key_state(key_state_ ? Rows<T>(*key_state_) : Rows<T>()),
        value_state(value_state_ ? Rows<T>(*value_state_) : Rows<T>()),
        pack_dropout(dropout_p, seed.value_or(at::Tensor()),
                     ops::DropoutMap::kCausalPack),
        unpack_dropout(dropout_p, seed.value_or(at::Tensor()),
                       ops::DropoutMap::kCausalUnpack),
        activation(activation_of(activation_)),
        scale(static_cast<T>(scale_)),
        heads(query_.size(1)),
        slots(packed_query_.size(2)),
        width(query_.size(3)),
        value_width(value_.size(3)),
        columns(padded(slots)),
        stride(tile_stride(slots)),
        sequences(list_sequences(query_.size(0), query_.size(2), query_.size(2),
                                 cu_seqlens.value_or(at::Tensor()),
                                 cu_seqlens.value_or(at::Tensor()))),
        counts(sequences.size(), 0),
        weights_(slot_weights<T>(
            packed_mask, static_cast<int64_t>(sequences.size()), slots)) {
    if (!count.has_value()) return;
    const auto given = count->accessor<int64_t, 1>();
    for (size_t s = 0; s < counts.size(); ++s) counts[s] = given[s];
  }

  /// Null where all columns take part.
  const T* weights(int64_t sequence) const {
    return weights_.defined()
               ? weights_.template const_data_ptr<T>() + sequence * columns
               : nullptr;
  }

  Rows<T> query, pack_key, key, value, packed_query;
  Rows<T> key_state, value_state;  ///< undefined: sums start from 0
  Dropout pack_dropout, unpack_dropout;
  Activation activation;
  T scale;
  int64_t heads, slots, width, value_width;
  int64_t columns, stride;  ///< of a tile of slots
  std::vector<Sequence> sequences;
  std::vector<int64_t> counts;  ///< tokens before each sequence's first

 private:
  at::Tensor weights_;
};

/// Cuts sequences only where there are fewer heads than threads: a cut costs
/// another pass over the tokens.
template <typename T>
Splits split_groups(const NestedCausalInputs<T>& in, int64_t unit) {
  int64_t total = 0;
  for (const Sequence& s : in.sequences) total += s.query_length * in.heads;
  const double target =
      std::max(1.0, static_cast<double>(total) / at::get_num_threads());
  Splits splits;
  splits.first.push_back(0);
  for (size_t s = 0; s < in.sequences.size(); ++s) {
    const int64_t length = in.sequences[s].query_length;
    const double threads = static_cast<double>(length) / target;
    const int64_t wanted =
        threads < 1.5 ? 1 : static_cast<int64_t>(2 * threads + 0.5);
    const int64_t units = std::max<int64_t>(1, (length + unit - 1) / unit);
    const int64_t size = (units + wanted - 1) / wanted * unit;
    const int64_t siblings = std::max<int64_t>(1, (length + size - 1) / size);
    for (int64_t head = 0; head < in.heads; ++head) {
      for (int64_t i = 0; i < siblings; ++i) {
        splits.list.push_back({static_cast<int64_t>(s), head, i * size,
                               std::clamp<int64_t>(length - i * size, 0, size),
                               static_cast<int64_t>(splits.list.size()),
                               siblings});
      }
      splits.first.push_back(static_cast<int64_t>(splits.list.size()));
    }
  }
  return splits;
}

/// One thread's chunk: up to kTokens tokens of one head, and what is made of
/// them alone.
template <typename T>
class Chunk {
 public:
  Chunk(const NestedCausalInputs<T>& in, Scratch<T>& scratch)
      : in_(in),
        packed_query_buffer_(scratch.take(in.slots * in.width)),
        transposed_packed_query_(scratch.take(in.width * in.stride)),
        query_buffer_(scratch.take(kTokens * in.width)),
        pack_key_buffer_(scratch.take(kTokens * in.width)),
        key_buffer_(scratch.take(kTokens * in.width)),
        value_buffer_(scratch.take(kTokens * in.value_width)),
        query(scratch.take(kTokens * in.width)),
        query_factor(scratch.take(kTokens)),
        inverse_count(scratch.take(kTokens)),
        pack_dropout_(in.pack_dropout),
        unpack_dropout_(in.unpack_dropout) {}

  static int64_t size(const NestedCausalInputs<T>& in) {
    return in.width * (in.slots + in.stride) +
           kTokens * (4 * in.width + in.value_width + 2);
  }

  void move_to_head(int64_t sequence, int64_t head) {
    sequence_ = sequence;
    head_ = head;
    packed_query = read_dense(in_.packed_query, sequence, head, 0, in_.slots,
                              packed_query_buffer_);
    transpose_padded(in_.slots, in_.width, packed_query, in_.scale,
                     transposed_packed_query_, in_.stride);
  }

  /// Tokens [begin, begin + count) of the head's sequence.
  void load(int64_t begin, int64_t count) {
    const Sequence& sequence = in_.sequences[sequence_];
    batch = sequence.batch;
    first = sequence.query_begin + begin;
    tokens = count;
    pack_key =
        read_dense(in_.pack_key, batch, head_, first, tokens, pack_key_buffer_);
    key = read_dense(in_.key, batch, head_, first, tokens, key_buffer_);
    value = read_dense(in_.value, batch, head_, first, tokens, value_buffer_);
    const int64_t before = in_.counts[sequence_] + begin;
    pack_dropout_.move_to(sequence_, head_, before, tokens);
    unpack_dropout_.move_to(sequence_, head_, before, tokens);
    for (int64_t i = 0; i < tokens; ++i) {
      inverse_count[i] = T(1) / static_cast<T>(before + i + 1);
      query_factor[i] = in_.scale * static_cast<T>(kLog2E) * inverse_count[i];
    }
  }

  /// query = q s log2(e) / t.
  void load_query() {
    const Tile<T> q =
        read_dense(in_.query, batch, head_, first, tokens, query_buffer_);
    std::copy_n(q.data, tokens * in_.width, query);
    tile_kernels<T>().scale_rows(tokens, in_.width, query, in_.width,
                                 query_factor);
  }

  /// a = dropped omega(pack_key (s packed_query)^T), [tokens, stride].
  void pack(T* a, T* slope) {
    deep_gemm(tokens, in_.columns, in_.width, pack_key.data, pack_key.stride,
              transposed_packed_query_, in_.stride, a, in_.stride, false);
    softmax_kernels<T>().activate(in_.activation, tokens, in_.columns, a,
                                  in_.stride, slope, in_.stride,
                                  pack_dropout_.at_slot(0));
  }

  /// sum [width, stride] += key^T a.
  void add_keys(const T* a, T* sum) const {
    tile_kernels<T>().gemm(in_.width, in_.columns, tokens, key.data, 1,
                           key.stride, a, in_.stride, sum, in_.stride, true);
  }

  const T* weights() const { return in_.weights(sequence_); }
  const DropoutTile* unpack_dropout() { return unpack_dropout_.at_slot(0); }
  int64_t head() const { return head_; }

 private:
  const NestedCausalInputs<T>& in_;
  int64_t sequence_ = 0, head_ = 0;
  T *packed_query_buffer_, *transposed_packed_query_, *query_buffer_,
      *pack_key_buffer_, *key_buffer_, *value_buffer_;

 public:
  int64_t batch = 0, first = 0, tokens = 0;
  Tile<T> packed_query = {}, pack_key = {}, key = {}, value = {};
  T* const query;
  T* const query_factor;   ///< s log2(e) / t of each token
  T* const inverse_count;  ///< 1 / t

 private:
  Dropout::Tiles pack_dropout_, unpack_dropout_;
};

// Products with the lower triangle L (the diagonal included) of a chunk's
// [tokens, tokens] matrix, in blocks of rows that skip most of what is 0.

constexpr int64_t kTriangleRows = 32;

/// L = lower triangle of x y, x [tokens, depth], y [depth, kChunkStride].
template <typename T>
void lower_scores(int64_t tokens, int64_t depth, const T* x, int64_t ldx,
                  const T* y, T* lower) {
  for (int64_t i = 0; i < tokens; i += kTriangleRows) {
    const int64_t rows = std::min(kTriangleRows, tokens - i);
    deep_gemm(rows, padded(i + rows), depth, x + i * ldx, ldx, y, kChunkStride,
              lower + i * kChunkStride, kChunkStride, false);
  }
  for (int64_t i = 0; i < tokens; ++i) {
    std::fill(lower + i * kChunkStride + i + 1,
              lower + i * kChunkStride + padded(tokens), T(0));
  }
}

/// c += L b.
template <typename T>
void add_lower(int64_t tokens, int64_t cols, const T* lower, const T* b,
               int64_t ldb, T* c, int64_t ldc) {
  for (int64_t i = 0; i < tokens; i += kTriangleRows) {
    const int64_t rows = std::min(kTriangleRows, tokens - i);
    tile_kernels<T>().gemm(rows, cols, i + rows, lower + i * kChunkStride,
                           kChunkStride, 1, b, ldb, c + i * ldc, ldc, true);
  }
}

/// c += L^T b.
template <typename T>
void add_lower_transposed(int64_t tokens, int64_t cols, const T* lower,
                          const T* b, int64_t ldb, T* c, int64_t ldc) {
  for (int64_t i = 0; i < tokens; i += kTriangleRows) {
    const int64_t rows = std::min(kTriangleRows, tokens - i);
    tile_kernels<T>().gemm(rows, cols, tokens - i, lower + i * kChunkStride + i,
                           1, kChunkStride, b + i * ldb, ldb, c + i * ldc, ldc,
                           true);
  }
}

}  // namespace luna::cpu
