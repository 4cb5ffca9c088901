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

#include "ops/pack_attention.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include <cmath>
#include <tuple>

#include "ops/checks.h"
#include "ops/cpu/nested.h"

namespace luna::cpu {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

/// Slots of a tile: kTokens x kSlots scores stay in L1.
constexpr int64_t kSlots = 64;

std::vector<Sequence> sequences_of(const Tensor& query, const Tensor& key,
                                   const OptionalTensor& cu_seqlens) {
  return list_sequences(key.size(0), query.size(2), key.size(2), Tensor(),
                        cu_seqlens.value_or(Tensor()));
}

Splits split_keys(const std::vector<Sequence>& sequences, int64_t heads) {
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
  Tile<T> dense;  ///< [slots, width]
  int64_t stride;
  T* transposed;  ///< factor * dense^T, [width, stride]
};

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
class Forward {
 public:
  Forward(const Tensor& query, const Tensor& key, const Tensor& value,
          const OptionalTensor& key_weight, const OptionalTensor& cu_seqlens,
          double scale, double dropout_p, const OptionalTensor& seed,
          Tensor& output, Tensor& unrounded, Tensor& stats)
      : query_(query, true),
        key_(key),
        value_(value),
        output_(output),
        unrounded_(unrounded.numel() > 0 ? Rows<T>(unrounded) : Rows<T>()),
        stats_(stats.data_ptr<T>()),
        weight_(key_weight),
        dropout_(dropout_p, seed.value_or(Tensor()), ops::DropoutMap::kPack),
        sequences_(sequences_of(query, key, cu_seqlens)),
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
    const int64_t stride = tile_stride(std::min(slots_, kSlots));
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
      std::fill_n(part.out, slots_ * width_, T(0));
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
        prefetch(key_, sequence.batch, split.head, first + tokens, next);
        prefetch(value_, sequence.batch, split.head, first + tokens, next);
        dropout.move_to(split.sequence, split.head, split.begin + at, tokens);
        for (int64_t slot = 0; slot < slots_; slot += kSlots) {
          const int64_t slots = std::min(kSlots, slots_ - slot);
          tiles.gemm(tokens, padded(slots), key_.width(), k.data, k.stride, 1,
                     query.transposed + slot, query.stride, scores, stride,
                     false);
          const bool rose = softmax_kernels<T>().columns_forward(
              tokens, padded(slots), scores, stride,
              weight_.at(sequence.batch, split.head, first), part.max + slot,
              part.sum + slot, factor, dropout.at_slot(slot));
          T* out = part.out + slot * width_;
          if (rose) tiles.scale_rows(slots, width_, out, width_, factor);
          tiles.gemm(slots, width_, tokens, scores, 1, stride, v.data, v.stride,
                     out, width_, true);
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
  Tensor parts_;
};

template <typename T>
class Backward {
 public:
  Backward(const Tensor& grad_output, const Tensor& query, const Tensor& key,
           const Tensor& value, const Tensor& output, const Tensor& stats,
           const OptionalTensor& key_weight, const OptionalTensor& cu_seqlens,
           double scale, double dropout_p, const OptionalTensor& seed,
           Tensor& grad_query, Tensor& grad_key, Tensor& grad_value,
           const Tensor& grad_weight)
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
        dropout_(dropout_p, seed.value_or(Tensor()), ops::DropoutMap::kPack),
        sequences_(sequences_of(query, key, cu_seqlens)),
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
    const int64_t stride = tile_stride(std::min(slots_, kSlots));
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
        std::fill_n(weight_sum, tokens, T(0));
        dropout.move_to(split.sequence, split.head, split.begin + at, tokens);
        int64_t slot = 0;
        do {  // once even without slots: dk and dv are then 0
          const int64_t slots = std::min(kSlots, slots_ - slot);
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
          slot += kSlots;
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
  Tensor parts_;
};

void check_values(const Tensor& key, const OptionalTensor& key_weight,
                  const OptionalTensor& cu_seqlens) {
  if (key_weight.has_value()) {
    ops::check_weight_values("pack_attention", *key_weight);
  }
  if (cu_seqlens.has_value()) {
    ops::check_cu_seqlens_values("pack_attention", "cu_seqlens_k", *cu_seqlens,
                                 key.size(2));
  }
}

std::tuple<Tensor, Tensor, Tensor> pack_attention_forward(
    const Tensor& query, const Tensor& key, const Tensor& value,
    const OptionalTensor& key_weight, const OptionalTensor& cu_seqlens_k,
    std::optional<double> scale, double dropout_p, const OptionalTensor& seed) {
  ops::check_pack_attention(query, key, value, key_weight, cu_seqlens_k,
                            dropout_p, seed);
  check_values(key, key_weight, cu_seqlens_k);
  const int64_t sequences =
      ops::pack_attention_sequences(key, cu_seqlens_k).expect_int();
  Tensor output =
      at::empty({sequences, query.size(1), query.size(2), value.size(3)},
                query.options());
  Tensor unrounded =
      at::empty(ops::is_rounded(query) ? output.sizes() : at::IntArrayRef{0},
                query.options().dtype(ops::compute_dtype(query)));
  Tensor stats = at::empty({2, sequences, query.size(1), query.size(2)},
                           query.options().dtype(ops::compute_dtype(query)));
  const double s = scale.value_or(1 / std::sqrt(double(query.size(3))));
  dispatch_compute(query, [&]<typename T>() {
    Forward<T>(query, key, value, key_weight, cu_seqlens_k, s, dropout_p, seed,
               output, unrounded, stats)
        .run();
  });
  return {output, unrounded, stats};
}

Tensor pack_attention(const Tensor& query, const Tensor& key,
                      const Tensor& value, const OptionalTensor& key_weight,
                      const OptionalTensor& cu_seqlens_k,
                      std::optional<double> scale, double dropout_p,
                      const OptionalTensor& seed) {
  return std::get<0>(pack_attention_forward(
      query, key, value, key_weight, cu_seqlens_k, scale, dropout_p, seed));
}

std::tuple<Tensor, Tensor, Tensor, Tensor> pack_attention_backward(
    const Tensor& grad_output, const Tensor& query, const Tensor& key,
    const Tensor& value, const Tensor& output, const Tensor& stats,
    const OptionalTensor& key_weight, const OptionalTensor& cu_seqlens_k,
    std::optional<double> scale, double dropout_p, const OptionalTensor& seed,
    bool weight_gradient) {
  ops::check_pack_attention_backward(grad_output, query, key, value, output,
                                     stats, key_weight, cu_seqlens_k, dropout_p,
                                     seed);
  check_values(key, key_weight, cu_seqlens_k);
  Tensor grad_query = at::empty(query.sizes(), query.options());
  Tensor grad_key = at::empty(key.sizes(), key.options());
  Tensor grad_value = at::empty(value.sizes(), value.options());
  Tensor grad_weight;
  weight_gradient &= key_weight.has_value();
  if (weight_gradient) {
    grad_weight =
        at::empty({key.size(0), key.size(1), key.size(2)}, stats.options());
  }
  const double s = scale.value_or(1 / std::sqrt(double(query.size(3))));
  dispatch_compute(query, [&]<typename T>() {
    Backward<T>(with_unit_stride(grad_output), query, key, value, output,
                stats.contiguous(), key_weight, cu_seqlens_k, s, dropout_p,
                seed, grad_query, grad_key, grad_value, grad_weight)
        .run();
  });
  return {grad_query, grad_key, grad_value,
          weight_gradient ? like_weight(grad_weight, *key_weight)
                          : at::empty({0}, query.options())};
}

TORCH_LIBRARY_IMPL(luna, CPU, m) {
  m.impl("pack_attention", pack_attention);
  m.impl("_pack_attention_forward", pack_attention_forward);
  m.impl("pack_attention_backward", pack_attention_backward);
}

}  // namespace
}  // namespace luna::cpu
