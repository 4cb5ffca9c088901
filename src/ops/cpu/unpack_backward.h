#pragma once

#include "ops/checks.h"
#include "ops/cpu/unpack.h"

namespace luna::cpu {

template <typename T>
class UnpackBackward {
 public:
  UnpackBackward(const at::Tensor& grad_output, const at::Tensor& query,
                 const at::Tensor& key, const at::Tensor& value,
                 const std::optional<at::Tensor>& key_weight,
                 const std::optional<at::Tensor>& cu_seqlens, double scale,
                 double dropout_p, const std::optional<at::Tensor>& seed,
                 at::Tensor& grad_query, at::Tensor& grad_key,
                 at::Tensor& grad_value, const at::Tensor& grad_weight)
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
        dropout_(dropout_p, seed.value_or(at::Tensor()),
                 ops::DropoutMap::kUnpack),
        heads_(query.size(1)),
        slots_(key.size(2)),
        scale_(static_cast<T>(scale)),
        factor_(static_cast<T>(scale * kLog2E)),
        sequences_(unpack_sequences(query, key, cu_seqlens)),
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
        const int64_t next = std::min(tile, split.length - at - tokens);
        query_.prefetch(sequence.batch, split.head, first + tokens, next);
        grad_output_.prefetch(sequence.batch, split.head, first + tokens, next);
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
  at::Tensor parts_;
};

}  // namespace luna::cpu
