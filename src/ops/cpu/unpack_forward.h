#pragma once

#include "ops/cpu/unpack.h"

namespace luna::cpu {

template <typename T>
class UnpackForward {
 public:
  UnpackForward(const at::Tensor& query, const at::Tensor& key,
                const at::Tensor& value,
                const std::optional<at::Tensor>& key_weight,
                const std::optional<at::Tensor>& cu_seqlens, double scale,
                double dropout_p, const std::optional<at::Tensor>& seed,
                at::Tensor& output)
      : query_(query),
        key_(key),
        value_(value),
        output_(output),
        weight_(key_weight),
        dropout_(dropout_p, seed.value_or(at::Tensor()),
                 ops::DropoutMap::kUnpack),
        slots_(key.size(2)),
        factor_(static_cast<T>(scale * kLog2E)),
        sequences_(unpack_sequences(query, key, cu_seqlens)),
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
        query_.prefetch(sequence.batch, split.head, first + tokens,
                        std::min(tile, split.length - at - tokens));
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

}  // namespace luna::cpu
