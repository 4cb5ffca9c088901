#pragma once

#include <cmath>

#include "ops/cpu/pack.h"

namespace luna::cpu {

/// One stretch's share of the result.
template <typename T>
struct Part {
  T* out;  ///< [slots, value width]
  T *max, *sum;
  static int64_t size(int64_t slots, int64_t width) {
    return padded(slots * width) + 2 * padded(slots);
  }
  Part(T* data, int64_t slots, int64_t width)
      : out(data),
        max(data + padded(slots * width)),
        sum(max + padded(slots)) {}
};

template <typename T>
class PackForward {
 public:
  PackForward(const at::Tensor& query, const at::Tensor& key,
              const at::Tensor& value,
              const std::optional<at::Tensor>& key_weight,
              const std::optional<at::Tensor>& cu_seqlens, double scale,
              double dropout_p, const std::optional<at::Tensor>& seed,
              at::Tensor& output, at::Tensor& unrounded, at::Tensor& stats)
      : query_(query, true),
        key_(key),
        value_(value),
        output_(output),
        unrounded_(unrounded.numel() > 0 ? Rows<T>(unrounded) : Rows<T>()),
        stats_(stats.data_ptr<T>()),
        weight_(key_weight),
        dropout_(dropout_p, seed.value_or(at::Tensor()),
                 ops::DropoutMap::kPack),
        sequences_(pack_sequences(query, key, cu_seqlens)),
        splits_(split_keys(sequences_, query.size(1))),
        heads_(query.size(1)),
        slots_(query.size(2)),
        width_(value.size(3)),
        scale_(static_cast<T>(scale * kLog2E)),
        part_size_(Part<T>::size(slots_, width_)),
        parts_(
            at::empty({static_cast<int64_t>(splits_.list.size()) * part_size_},
                      stats.options())) {}

  void run() {
    const int64_t count = static_cast<int64_t>(splits_.list.size());
    at::parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
      run_splits(begin, end);
    });
    const int64_t all = static_cast<int64_t>(sequences_.size()) * heads_;
    at::parallel_for(0, all, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t siblings = splits_.first[i + 1] - splits_.first[i];
        if (siblings == 0) write_nothing(i);
        if (siblings > 1) merge(i, part_data(splits_.first[i]), siblings);
      }
    });
  }

 private:
  T* part_data(int64_t index) {
    return parts_.template data_ptr<T>() + index * part_size_;
  }

  void run_splits(int64_t begin, int64_t end) {
    const int64_t stride = tile_stride(std::min(slots_, kPackSlots));
    Scratch<T> scratch(slots_ * query_.width() +
                       query_.width() * tile_stride(slots_) +
                       kTokens * (key_.width() + width_ + stride) +
                       padded(slots_) + part_size_);
    HeadQuery<T> query(query_, slots_, scale_, scratch);
    T* own_part = scratch.take(part_size_);
    T* keys = scratch.take(kTokens * key_.width());
    T* values = scratch.take(kTokens * width_);
    T* scores = scratch.take(kTokens * stride);
    T* factor = scratch.take(padded(slots_));
    Dropout::Tiles dropout(dropout_);
    const auto& tiles = tile_kernels<T>();
    for (int64_t index = begin; index < end; ++index) {
      const Split& split = splits_.list[index];
      const Sequence& sequence = sequences_[split.sequence];
      query.move_to(split.sequence, split.head);
      const bool alone = split.siblings == 1;
      Part<T> part(alone ? own_part : part_data(index), slots_, width_);
      std::fill_n(part.max, padded(slots_), SoftmaxKernels<T>::kLowest);
      std::fill_n(part.sum, padded(slots_), T(0));
      for (int64_t at = 0; at < split.length; at += kTokens) {
        const int64_t tokens = std::min(kTokens, split.length - at);
        const int64_t first = sequence.key_begin + split.begin + at;
        const Tile<T> k =
            read_dense(key_, sequence.batch, split.head, first, tokens, keys);
        const Tile<T> v = read_dense(value_, sequence.batch, split.head, first,
                                     tokens, values);
        const int64_t next = std::min(kTokens, split.length - at - tokens);
        key_.prefetch(sequence.batch, split.head, first + tokens, next);
        value_.prefetch(sequence.batch, split.head, first + tokens, next);
        dropout.move_to(split.sequence, split.head, split.begin + at, tokens);
        for (int64_t slot = 0; slot < slots_; slot += kPackSlots) {
          const int64_t slots = std::min(kPackSlots, slots_ - slot);
          tiles.gemm(tokens, padded(slots), key_.width(), k.data, k.stride, 1,
                     query.transposed + slot, query.stride, scores, stride,
                     false);
          const bool rose = softmax_kernels<T>().columns_forward(
              tokens, padded(slots), scores, stride,
              weight_.at(sequence.batch, split.head, first), part.max + slot,
              part.sum + slot, factor, dropout.at_slot(slot));
          T* out = part.out + slot * width_;
          if (rose && at > 0) {
            tiles.scale_rows(slots, width_, out, width_, factor);
          }
          tiles.gemm(slots, width_, tokens, scores, 1, stride, v.data, v.stride,
                     out, width_, at > 0);
        }
      }
      if (alone) merge(split.sequence * heads_ + split.head, own_part, 1);
    }
  }

  /// Writes the result of one sequence and head from its parts, which stand
  /// one after the other.
  void merge(int64_t sequence_head, T* parts, int64_t count) {
    const int64_t all = static_cast<int64_t>(sequences_.size()) * heads_;
    const auto part = [&](int64_t p) {
      return Part<T>(parts + p * part_size_, slots_, width_);
    };
    T* max = stats_ + sequence_head * slots_;
    T* inverse = max + all * slots_;
    for (int64_t i = 0; i < slots_; ++i) {
      T top = SoftmaxKernels<T>::kLowest, sum = 0;
      for (int64_t p = 0; p < count; ++p) top = std::max(top, part(p).max[i]);
      for (int64_t p = 0; p < count; ++p) {
        sum += std::exp2(part(p).max[i] - top) * part(p).sum[i];
      }
      // A slot that saw no key: p = 0, whatever the score.
      max[i] = sum == T(0) ? T(0) : top;
      inverse[i] = inverse_of(sum);
    }
    const auto& tiles = tile_kernels<T>();
    T* out = part(0).out;
    for (int64_t p = 0; p < count; ++p) {
      T* factor = part(p).max;
      for (int64_t i = 0; i < slots_; ++i) {
        factor[i] = inverse[i] == T(0)
                        ? T(0)
                        : std::exp2(factor[i] - max[i]) * inverse[i];
      }
      tiles.scale_rows(slots_, width_, part(p).out, width_, factor);
      if (p > 0) tiles.add(slots_ * width_, part(p).out, out);
    }
    write(sequence_head, out);
  }

  void write(int64_t sequence_head, const T* out) {
    const int64_t sequence = sequence_head / heads_;
    const int64_t head = sequence_head % heads_;
    output_.write(sequence, head, 0, slots_, out, width_);
    if (!unrounded_.defined()) return;
    unrounded_.write(sequence, head, 0, slots_, out, width_);
  }

  /// The same where there was no key at all.
  void write_nothing(int64_t sequence_head) {
    const int64_t all = static_cast<int64_t>(sequences_.size()) * heads_;
    std::fill_n(stats_ + sequence_head * slots_, slots_, T(0));
    std::fill_n(stats_ + (all + sequence_head) * slots_, slots_, T(0));
    const std::vector<T> zeros(slots_ * width_);
    write(sequence_head, zeros.data());
  }

  Rows<T> query_, key_, value_, output_, unrounded_;
  T* stats_;
  KeyWeight<T> weight_;
  Dropout dropout_;
  std::vector<Sequence> sequences_;
  Splits splits_;
  int64_t heads_, slots_, width_;
  T scale_;
  int64_t part_size_;
  at::Tensor parts_;
};

}  // namespace luna::cpu
