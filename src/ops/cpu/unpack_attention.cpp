// unpack_attention on the CPU: a long sequence reads a short memory.
//
// A task is one head and one stretch of queries, in tiles: scores = Q (s K)^T
// as [tokens, slots], softmax along the rows, out = P V. Backward makes P
// anew; dq belongs to the tile, dk and dv are summed over a stretch and the
// stretches then added in a fixed order.

#include "ops/unpack_attention.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include <cmath>
#include <limits>
#include <tuple>

#include "ops/checks.h"
#include "ops/cpu/nested.h"

namespace luna::cpu {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

std::vector<Sequence> sequences_of(const Tensor& query, const Tensor& key,
                                   const OptionalTensor& cu_seqlens) {
  return list_sequences(query.size(0), query.size(2), key.size(2),
                        cu_seqlens.value_or(Tensor()), Tensor());
}

Splits split_queries(const std::vector<Sequence>& sequences, int64_t heads,
                     int64_t slots) {
  std::vector<int64_t> lengths;
  for (const Sequence& s : sequences) lengths.push_back(s.query_length);
  // At least 2 l: then the parts of dk and dv are no larger than dq.
  return split_tokens(lengths, heads, std::max<int64_t>(256, 2 * padded(slots)),
                      4096);
}

/// Tokens of a tile: all slots of a row are there at once, so fewer where
/// there are very many.
int64_t tile_tokens(int64_t slots) {
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

template <typename T>
class Forward {
 public:
  Forward(const Tensor& query, const Tensor& key, const Tensor& value,
          const OptionalTensor& key_weight, const OptionalTensor& cu_seqlens,
          double scale, double dropout_p, const OptionalTensor& seed,
          Tensor& output)
      : query_(query),
        key_(key),
        value_(value),
        output_(output),
        weight_(key_weight),
        dropout_(dropout_p, seed.value_or(Tensor()), ops::DropoutMap::kUnpack),
        slots_(key.size(2)),
        factor_(static_cast<T>(scale * kLog2E)),
        sequences_(sequences_of(query, key, cu_seqlens)),
        splits_(split_queries(sequences_, query.size(1), slots_)) {}

  void run() {
    const int64_t count = static_cast<int64_t>(splits_.list.size());
    at::parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
      run_splits(begin, end);
    });
  }

 private:
  void run_splits(int64_t begin, int64_t end) {
    const int64_t d = query_.width(), width = value_.width();
    const int64_t tile = tile_tokens(slots_), columns = padded(slots_);
    Scratch<T> scratch(Memory<T>::size(slots_, d, width) +
                       tile * (tile_stride(slots_) + d + width));
    Memory<T> memory(key_, value_, slots_, factor_, weight_, false, scratch);
    T* scores = scratch.take(tile * memory.stride);
    T* queries = scratch.take(tile * d);
    T* outputs = scratch.take(tile * width);
    Dropout::Tiles dropout(dropout_);
    for (int64_t index = begin; index < end; ++index) {
      const Split& split = splits_.list[index];
      const Sequence& sequence = sequences_[split.sequence];
      memory.move_to(split.sequence, split.head);
      for (int64_t at = 0; at < split.length; at += tile) {
        const int64_t tokens = std::min(tile, split.length - at);
        const int64_t first = sequence.query_begin + split.begin + at;
        const Tile<T> q =
            query_.read(sequence.batch, split.head, first, tokens, queries);
        tile_kernels<T>().gemm(tokens, columns, d, q.data, q.stride, 1,
                               memory.transposed_key, memory.stride, scores,
                               memory.stride, false);
        dropout.move_to(split.sequence, split.head, split.begin + at, tokens);
        softmax_kernels<T>().rows_forward(tokens, columns, scores,
                                          memory.stride, memory.weight, false,
                                          dropout.at_slot(0));
        T* out = output_.in_place(sequence.batch, split.head, first);
        const int64_t ldo = out == nullptr ? width : output_.row_stride();
        deep_gemm(tokens, width, slots_, scores, memory.stride,
                  memory.dense_value.data, memory.dense_value.stride,
                  out == nullptr ? outputs : out, ldo, false);
        if (out == nullptr) {
          output_.write(sequence.batch, split.head, first, tokens, outputs,
                        width);
        }
      }
    }
  }

  Rows<T> query_, key_, value_, output_;
  KeyWeight<T> weight_;
  Dropout dropout_;
  int64_t slots_;
  T factor_;
  std::vector<Sequence> sequences_;
  Splits splits_;
};

template <typename T>
class Backward {
 public:
  Backward(const Tensor& grad_output, const Tensor& query, const Tensor& key,
           const Tensor& value, const OptionalTensor& key_weight,
           const OptionalTensor& cu_seqlens, double scale, double dropout_p,
           const OptionalTensor& seed, Tensor& grad_query, Tensor& grad_key,
           Tensor& grad_value, const Tensor& grad_weight)
      : grad_output_(grad_output),
        query_(query),
        key_(key),
        value_(value),
        grad_query_(grad_query),
        grad_key_(grad_key),
        grad_value_(grad_value),
        grad_weight_(grad_weight.defined() ? grad_weight.data_ptr<T>()
                                           : nullptr),
        weight_(key_weight),
        dropout_(dropout_p, seed.value_or(Tensor()), ops::DropoutMap::kUnpack),
        heads_(query.size(1)),
        slots_(key.size(2)),
        scale_(static_cast<T>(scale)),
        factor_(static_cast<T>(scale * kLog2E)),
        sequences_(sequences_of(query, key, cu_seqlens)),
        splits_(split_queries(sequences_, heads_, slots_)),
        key_size_(padded(slots_ * key.size(3))),
        value_size_(padded(slots_ * value.size(3))),
        part_size_(key_size_ + value_size_ + padded(slots_)),
        parts_(
            at::empty({static_cast<int64_t>(splits_.list.size()) * part_size_},
                      query.options().dtype(ops::compute_dtype(query)))) {}

  void run() {
    const int64_t count = static_cast<int64_t>(splits_.list.size());
    at::parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
      run_splits(begin, end);
    });
    const int64_t all = static_cast<int64_t>(sequences_.size()) * heads_;
    at::parallel_for(0, all, 1, [&](int64_t begin, int64_t end) {
      std::vector<T> sum(part_size_);
      for (int64_t i = begin; i < end; ++i) {
        const int64_t first = splits_.first[i], last = splits_.first[i + 1];
        if (last - first == 1) continue;
        std::fill(sum.begin(), sum.end(), T(0));
        add_parts(parts_.template const_data_ptr<T>(), part_size_, first, last,
                  part_size_, sum.data());
        write(i, sum.data());
      }
    });
  }

 private:
  void run_splits(int64_t begin, int64_t end) {
    const int64_t d = query_.width(), width = value_.width();
    const int64_t tile = tile_tokens(slots_), columns = padded(slots_);
    Scratch<T> scratch(Memory<T>::size(slots_, d, width) +
                       tile * 2 * (tile_stride(slots_) + d + width) +
                       part_size_);
    Memory<T> memory(key_, value_, slots_, factor_, weight_, true, scratch);
    T* own_part = scratch.take(part_size_);
    T* p = scratch.take(tile * memory.stride);
    T* ds = scratch.take(tile * memory.stride);
    T* queries = scratch.take(tile * d);
    T* gradients = scratch.take(tile * width);
    T* grad_queries = scratch.take(tile * d);
    Dropout::Tiles dropout(dropout_);
    const auto& tiles = tile_kernels<T>();
    const auto& softmax = softmax_kernels<T>();
    for (int64_t index = begin; index < end; ++index) {
      const Split& split = splits_.list[index];
      const Sequence& sequence = sequences_[split.sequence];
      memory.move_to(split.sequence, split.head);
      T* part = split.siblings == 1
                    ? own_part
                    : parts_.template data_ptr<T>() + index * part_size_;
      std::fill_n(part, part_size_, T(0));
      T* grad_keys = part;
      T* grad_values = part + key_size_;
      T* grad_weights = grad_values + value_size_;
      for (int64_t at = 0; at < split.length; at += tile) {
        const int64_t tokens = std::min(tile, split.length - at);
        const int64_t first = sequence.query_begin + split.begin + at;
        const Tile<T> q = read_dense(query_, sequence.batch, split.head, first,
                                     tokens, queries);
        const Tile<T> g = read_dense(grad_output_, sequence.batch, split.head,
                                     first, tokens, gradients);
        tiles.gemm(tokens, columns, d, q.data, q.stride, 1,
                   memory.transposed_key, memory.stride, p, memory.stride,
                   false);
        softmax.rows_forward(tokens, columns, p, memory.stride, memory.weight,
                             true, nullptr);
        tiles.gemm(tokens, columns, width, g.data, g.stride, 1,
                   memory.transposed_value, memory.stride, ds, memory.stride,
                   false);
        dropout.move_to(split.sequence, split.head, split.begin + at, tokens);
        softmax.rows_backward(tokens, columns, p, memory.stride, ds,
                              memory.stride, scale_, memory.weight,
                              grad_weights, dropout.at_slot(0));
        deep_gemm(tokens, d, slots_, ds, memory.stride, memory.dense_key.data,
                  memory.dense_key.stride, grad_queries, d, false);
        grad_query_.write(sequence.batch, split.head, first, tokens,
                          grad_queries, d);
        tiles.gemm(slots_, d, tokens, ds, 1, memory.stride, q.data, q.stride,
                   grad_keys, d, true);
        tiles.gemm(slots_, width, tokens, p, 1, memory.stride, g.data, g.stride,
                   grad_values, width, true);
      }
      if (split.siblings == 1) {
        write(split.sequence * heads_ + split.head, part);
      }
    }
  }

  void write(int64_t sequence_head, const T* part) {
    const int64_t sequence = sequence_head / heads_;
    const int64_t head = sequence_head % heads_;
    grad_key_.write(sequence, head, 0, slots_, part, key_.width());
    grad_value_.write(sequence, head, 0, slots_, part + key_size_,
                      value_.width());
    if (grad_weight_ != nullptr) {
      std::copy_n(part + key_size_ + value_size_, slots_,
                  grad_weight_ + sequence_head * slots_);
    }
  }

  Rows<T> grad_output_, query_, key_, value_;
  Rows<T> grad_query_, grad_key_, grad_value_;
  T* grad_weight_;
  KeyWeight<T> weight_;
  Dropout dropout_;
  int64_t heads_, slots_;
  T scale_, factor_;
  std::vector<Sequence> sequences_;
  Splits splits_;
  int64_t key_size_, value_size_, part_size_;
  Tensor parts_;
};

void check_values(const Tensor& query, const OptionalTensor& key_weight,
                  const OptionalTensor& cu_seqlens) {
  if (key_weight.has_value()) {
    ops::check_weight_values("unpack_attention", *key_weight);
  }
  if (cu_seqlens.has_value()) {
    ops::check_cu_seqlens_values("unpack_attention", "cu_seqlens_q",
                                 *cu_seqlens, query.size(2));
  }
}

Tensor unpack_attention(const Tensor& query, const Tensor& key,
                        const Tensor& value, const OptionalTensor& key_weight,
                        const OptionalTensor& cu_seqlens_q,
                        std::optional<double> scale, double dropout_p,
                        const OptionalTensor& seed) {
  ops::check_unpack_attention(query, key, value, key_weight, cu_seqlens_q,
                              dropout_p, seed);
  check_values(query, key_weight, cu_seqlens_q);
  Tensor output =
      at::empty({query.size(0), query.size(1), query.size(2), value.size(3)},
                query.options());
  const double s = scale.value_or(1 / std::sqrt(double(query.size(3))));
  dispatch_compute(query, [&]<typename T>() {
    Forward<T>(query, key, value, key_weight, cu_seqlens_q, s, dropout_p, seed,
               output)
        .run();
  });
  return output;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> unpack_attention_backward(
    const Tensor& grad_output, const Tensor& query, const Tensor& key,
    const Tensor& value, const OptionalTensor& key_weight,
    const OptionalTensor& cu_seqlens_q, std::optional<double> scale,
    double dropout_p, const OptionalTensor& seed, bool weight_gradient) {
  ops::check_unpack_attention_backward(grad_output, query, key, value,
                                       key_weight, cu_seqlens_q, dropout_p,
                                       seed);
  check_values(query, key_weight, cu_seqlens_q);
  Tensor grad_query = at::empty(query.sizes(), query.options());
  Tensor grad_key = at::empty(key.sizes(), key.options());
  Tensor grad_value = at::empty(value.sizes(), value.options());
  weight_gradient &= key_weight.has_value();
  Tensor grad_weight;
  if (weight_gradient) {
    grad_weight = at::empty({key.size(0), key.size(1), key.size(2)},
                            query.options().dtype(ops::compute_dtype(query)));
  }
  const double s = scale.value_or(1 / std::sqrt(double(query.size(3))));
  dispatch_compute(query, [&]<typename T>() {
    Backward<T>(with_unit_stride(grad_output), query, key, value, key_weight,
                cu_seqlens_q, s, dropout_p, seed, grad_query, grad_key,
                grad_value, grad_weight)
        .run();
  });
  return {grad_query, grad_key, grad_value,
          weight_gradient ? like_weight(grad_weight, *key_weight)
                          : at::empty({0}, query.options())};
}

TORCH_LIBRARY_IMPL(luna, CPU, m) {
  m.impl("unpack_attention", unpack_attention);
  m.impl("unpack_attention_backward", unpack_attention_backward);
}

}  // namespace
}  // namespace luna::cpu
