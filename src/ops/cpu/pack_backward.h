#pragma once

#include "ops/cpu/pack.h"

namespace luna::cpu {

template <typename T>
class PackBackward {
 public:
  PackBackward(const at::Tensor& grad_output, const at::Tensor& query,
               const at::Tensor& key, const at::Tensor& value,
               const at::Tensor& output, const at::Tensor& stats,
               const std::optional<at::Tensor>& key_weight,
               const std::optional<at::Tensor>& cu_seqlens, double scale,
               double dropout_p, const std::optional<at::Tensor>& seed,
               at::Tensor& grad_query, at::Tensor& grad_key,
               at::Tensor& grad_value, const at::Tensor& grad_weight)
      : grad_output_(grad_output),
        query_(query, true),
        key_(key),
        value_(value),
        output_(output),
        grad_query_(grad_query),
        grad_key_(grad_key),
        grad_value_(grad_value),
        stats_(stats.const_data_ptr<T>()),
        grad_weight_(grad_weight.defined() ? grad_weight.data_ptr<T>()
                                           : nullptr),
        weight_(key_weight),
        dropout_(dropout_p, seed.value_or(at::Tensor()),
                 ops::DropoutMap::kPack),
        sequences_(pack_sequences(query, key, cu_seqlens)),
        splits_(split_keys(sequences_, query.size(1))),
        heads_(query.size(1)),
        slots_(query.size(2)),
        width_(value.size(3)),
        total_keys_(key.size(2)),
        shared_query_(query.size(0) == 1),
        scale_(static_cast<T>(scale)),
        factor_(static_cast<T>(scale * kLog2E)),
        part_size_(padded(slots_ * query.size(3))),
        parts_(
            at::empty({static_cast<int64_t>(splits_.list.size()) * part_size_},
                      stats.options())) {}

  void run() {
    const int64_t count = static_cast<int64_t>(splits_.list.size());
    at::parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
      run_splits(begin, end);
    });
    const int64_t sequences = static_cast<int64_t>(sequences_.size());
    const int64_t targets = shared_query_ ? 1 : sequences;
    at::parallel_for(0, targets * heads_, 1, [&](int64_t begin, int64_t end) {
      std::vector<T> sum(part_size_);
      for (int64_t i = begin; i < end; ++i) {
        const int64_t target = i / heads_, head = i % heads_;
        std::fill(sum.begin(), sum.end(), T(0));
        const int64_t last = shared_query_ ? sequences : target + 1;
        for (int64_t s = target; s < last; ++s) {
          add_parts(parts_.template const_data_ptr<T>(), part_size_,
                    splits_.first[s * heads_ + head],
                    splits_.first[s * heads_ + head + 1], part_size_,
                    sum.data());
        }
        grad_query_.write(target, head, 0, slots_, sum.data(), query_.width());
      }
    });
  }

 private:
  void run_splits(int64_t begin, int64_t end) {
    const int64_t d = query_.width();
    const int64_t stride = tile_stride(std::min(slots_, kPackSlots));
    Scratch<T> scratch(slots_ * d + d * tile_stride(slots_) + slots_ * width_ +
                       width_ * tile_stride(slots_) + slots_ * width_ +
                       3 * padded(slots_) + 2 * kTokens * (d + width_) +
                       2 * kTokens * stride + kTokens);
    HeadQuery<T> query(query_, slots_, factor_, scratch);
    HeadQuery<T> gradient(grad_output_, slots_, T(1), scratch);
    T* outputs = scratch.take(slots_ * width_);
    T* max = scratch.take_zeros(padded(slots_));
    T* inverse = scratch.take_zeros(padded(slots_));
    T* delta = scratch.take_zeros(padded(slots_));
    T* keys = scratch.take(kTokens * d);
    T* values = scratch.take(kTokens * width_);
    T* grad_keys = scratch.take(kTokens * d);
    T* grad_values = scratch.take(kTokens * width_);
    T* p = scratch.take(kTokens * stride);
    T* ds = scratch.take(kTokens * stride);
    T* weight_sum = scratch.take(kTokens);
    Dropout::Tiles dropout(dropout_);
    const auto& tiles = tile_kernels<T>();
    const int64_t all = static_cast<int64_t>(sequences_.size()) * heads_;
    for (int64_t index = begin; index < end; ++index) {
      const Split& split = splits_.list[index];
      const Sequence& sequence = sequences_[split.sequence];
      query.move_to(split.sequence, split.head);
      if (gradient.move_to(split.sequence, split.head)) {
        const int64_t at = (split.sequence * heads_ + split.head) * slots_;
        std::copy_n(stats_ + at, slots_, max);
        std::copy_n(stats_ + all * slots_ + at, slots_, inverse);
        const Tile<T> out =
            output_.read(split.sequence, split.head, 0, slots_, outputs);
        tiles.row_dots(slots_, width_, out.data, out.stride,
                       gradient.dense.data, gradient.dense.stride, delta);
      }
      T* part = parts_.template data_ptr<T>() + index * part_size_;
      std::fill_n(part, part_size_, T(0));
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
        std::fill_n(weight_sum, tokens, T(0));
        dropout.move_to(split.sequence, split.head, split.begin + at, tokens);
        int64_t slot = 0;
        do {  // once even without slots: dk and dv are then 0
          const int64_t slots = std::min(kPackSlots, slots_ - slot);
          tiles.gemm(tokens, padded(slots), d, k.data, k.stride, 1,
                     query.transposed + slot, query.stride, p, stride, false);
          tiles.gemm(tokens, padded(slots), width_, v.data, v.stride, 1,
                     gradient.transposed + slot, gradient.stride, ds, stride,
                     false);
          softmax_kernels<T>().columns_backward(
              tokens, padded(slots), p, stride, ds, stride, max + slot,
              inverse + slot, delta + slot, scale_,
              weight_.at(sequence.batch, split.head, first), weight_sum,
              dropout.at_slot(slot));
          tiles.gemm(tokens, width_, slots, p, stride, 1,
                     gradient.dense.data + slot * width_, width_, grad_values,
                     width_, slot > 0);
          tiles.gemm(tokens, d, slots, ds, stride, 1,
                     query.dense.data + slot * d, d, grad_keys, d, slot > 0);
          tiles.gemm(slots, d, tokens, ds, 1, stride, k.data, k.stride,
                     part + slot * d, d, true);
          slot += kPackSlots;
        } while (slot < slots_);
        grad_key_.write(sequence.batch, split.head, first, tokens, grad_keys,
                        d);
        grad_value_.write(sequence.batch, split.head, first, tokens,
                          grad_values, width_);
        if (grad_weight_ != nullptr) {
          std::copy_n(weight_sum, tokens,
                      grad_weight_ +
                          (sequence.batch * heads_ + split.head) * total_keys_ +
                          first);
        }
      }
    }
  }

  Rows<T> grad_output_, query_, key_, value_, output_;
  Rows<T> grad_query_, grad_key_, grad_value_;
  const T* stats_;
  T* grad_weight_;
  KeyWeight<T> weight_;
  Dropout dropout_;
  std::vector<Sequence> sequences_;
  Splits splits_;
  int64_t heads_, slots_, width_, total_keys_;
  bool shared_query_;
  T scale_, factor_;
  int64_t part_size_;
  at::Tensor parts_;
};

}  // namespace luna::cpu
