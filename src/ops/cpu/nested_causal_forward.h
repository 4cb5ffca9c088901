#pragma once

#include "ops/cpu/nested_causal.h"

namespace luna::cpu {

/// nested_causal_attention in chunks of T tokens. With S1 = sum k a^T and
/// S2 = sum a v^T before the chunk, and L(x) the lower triangle of x:
///
///   w = softmax( (q S1 + L(q k^T) a) s/t ),  y = (w S2 + L(w a^T) v) / t.
///
/// A group of chunks is one thread's; where a sequence is cut into several,
/// a first pass makes the groups' sums.
template <typename T>
class NestedCausalForward {
 public:
  NestedCausalForward(const NestedCausalInputs<T>& in, at::Tensor& output,
                      at::Tensor& key_state, at::Tensor& value_state)
      : in_(in),
        output_(output),
        key_state_(key_state),
        value_state_(value_state),
        groups_(split_groups(in, kTokens)),
        keys_size_(in.width * in.stride),
        state_size_(padded(keys_size_ + in.slots * in.value_width)) {}

  void run() {
    if (any_cut(groups_)) make_starts();
    const int64_t count = static_cast<int64_t>(groups_.list.size());
    at::parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
      Scratch<T> scratch(Chunk<T>::size(in_) + state_size_ + work_size());
      Chunk<T> chunk(in_, scratch);
      T* state = scratch.take(state_size_);
      Work work(in_, scratch);
      for (int64_t i = begin; i < end; ++i) {
        run_group(groups_.list[i], chunk, state, work);
      }
    });
  }

 private:
  struct Work {
    Work(const NestedCausalInputs<T>& in, Scratch<T>& scratch)
        : a(scratch.take(kTokens * in.stride)),
          w(scratch.take(kTokens * in.stride)),
          transposed_key(scratch.take(in.width * kChunkStride)),
          transposed_a(scratch.take(in.slots * kChunkStride)),
          lower(scratch.take(kTokens * kChunkStride)),
          out(scratch.take(kTokens * in.value_width)) {}
    T *a, *w, *transposed_key, *transposed_a, *lower, *out;
  };
  int64_t work_size() const {
    return kTokens * (2 * in_.stride + kChunkStride + in_.value_width) +
           kChunkStride * (in_.width + in_.slots);
  }

  /// Sums over each group, then what stands before each group.
  void make_starts() {
    const int64_t count = static_cast<int64_t>(groups_.list.size());
    starts_ =
        at::empty({count, state_size_}, at::CppTypeToScalarType<T>::value);
    at::parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
      Scratch<T> scratch(Chunk<T>::size(in_) + kTokens * in_.stride);
      Chunk<T> chunk(in_, scratch);
      T* a = scratch.take(kTokens * in_.stride);
      for (int64_t i = begin; i < end; ++i) {
        const Split& group = groups_.list[i];
        const bool last = i + 1 == count || groups_.list[i + 1].begin == 0;
        if (last) continue;
        std::fill_n(start(i), state_size_, T(0));
        chunk.move_to_head(group.sequence, group.head);
        for (int64_t at = 0; at < group.length; at += kTokens) {
          chunk.load(group.begin + at, std::min(kTokens, group.length - at));
          chunk.pack(a, nullptr);
          add_chunk(chunk, a, start(i));
        }
      }
    });
    const int64_t heads = static_cast<int64_t>(groups_.first.size()) - 1;
    at::parallel_for(0, heads, 1, [&](int64_t begin, int64_t end) {
      std::vector<T> running(state_size_);
      for (int64_t h = begin; h < end; ++h) {
        const int64_t first = groups_.first[h], last = groups_.first[h + 1];
        read_state(groups_.list[first], running.data());
        for (int64_t i = first; i < last; ++i) {
          std::swap_ranges(running.begin(), running.end(), start(i));
          if (i + 1 < last) {
            tile_kernels<T>().add(state_size_, start(i), running.data());
          }
        }
      }
    });
  }

  T* start(int64_t group) {
    return starts_.template data_ptr<T>() + group * state_size_;
  }

  /// The state given by the caller, or 0.
  void read_state(const Split& group, T* state) const {
    std::fill_n(state, state_size_, T(0));
    if (!in_.key_state.defined()) return;
    const Tile<T> keys =
        in_.key_state.read(group.sequence, group.head, 0, in_.width, nullptr);
    for (int64_t i = 0; i < in_.width; ++i) {
      std::copy_n(keys.data + i * keys.stride, in_.slots,
                  state + i * in_.stride);
    }
    const Tile<T> values =
        in_.value_state.read(group.sequence, group.head, 0, in_.slots, nullptr);
    for (int64_t i = 0; i < in_.slots; ++i) {
      std::copy_n(values.data + i * values.stride, in_.value_width,
                  state + keys_size_ + i * in_.value_width);
    }
  }

  void add_chunk(const Chunk<T>& chunk, const T* a, T* state) const {
    chunk.add_keys(a, state);
    tile_kernels<T>().gemm(in_.slots, in_.value_width, chunk.tokens, a, 1,
                           in_.stride, chunk.value.data, chunk.value.stride,
                           state + keys_size_, in_.value_width, true);
  }

  void run_group(const Split& group, Chunk<T>& chunk, T* state, Work& work) {
    if (starts_.defined()) {
      std::copy_n(start(group.index), state_size_, state);
    } else {
      read_state(group, state);
    }
    chunk.move_to_head(group.sequence, group.head);
    for (int64_t at = 0; at < group.length; at += kTokens) {
      chunk.load(group.begin + at, std::min(kTokens, group.length - at));
      run_chunk(chunk, state, work);
    }
    const int64_t end = group.begin + group.length;
    if (end < in_.sequences[group.sequence].query_length) return;
    key_state_.write(group.sequence, group.head, 0, in_.width, state,
                     in_.stride);
    value_state_.write(group.sequence, group.head, 0, in_.slots,
                       state + keys_size_, in_.value_width);
  }

  void run_chunk(Chunk<T>& chunk, T* state, Work& work) {
    const auto& tiles = tile_kernels<T>();
    const int64_t tokens = chunk.tokens;
    chunk.pack(work.a, nullptr);
    chunk.load_query();
    transpose_padded(tokens, in_.width, chunk.key, T(1), work.transposed_key,
                     kChunkStride);
    lower_scores(tokens, in_.width, chunk.query, in_.width, work.transposed_key,
                 work.lower);
    deep_gemm(tokens, in_.columns, in_.width, chunk.query, in_.width, state,
              in_.stride, work.w, in_.stride, false);
    add_lower(tokens, in_.columns, work.lower, work.a, in_.stride, work.w,
              in_.stride);
    softmax_kernels<T>().rows_forward(tokens, in_.columns, work.w, in_.stride,
                                      chunk.weights(), false,
                                      chunk.unpack_dropout());
    transpose_padded<T>(tokens, in_.slots, {work.a, in_.stride}, T(1),
                        work.transposed_a, kChunkStride);
    lower_scores(tokens, in_.slots, work.w, in_.stride, work.transposed_a,
                 work.lower);
    deep_gemm(tokens, in_.value_width, in_.slots, work.w, in_.stride,
              state + keys_size_, in_.value_width, work.out, in_.value_width,
              false);
    add_lower(tokens, in_.value_width, work.lower, chunk.value.data,
              chunk.value.stride, work.out, in_.value_width);
    tiles.scale_rows(tokens, in_.value_width, work.out, in_.value_width,
                     chunk.inverse_count);
    output_.write(chunk.batch, chunk.head(), chunk.first, tokens, work.out,
                  in_.value_width);
    add_chunk(chunk, work.a, state);
  }

  const NestedCausalInputs<T>& in_;
  Rows<T> output_, key_state_, value_state_;
  Splits groups_;
  int64_t keys_size_, state_size_;  ///< S1 [width, stride], S2 [slots, dv]
  at::Tensor starts_;
};

}  // namespace luna::cpu
