#pragma once

#include "ops/cpu/nested_causal.h"

namespace luna::cpu {

/// The gradient of nested_causal_attention. In the words of forward, with
/// q' = q s log2(e) / t, g = dy / t and everything of a chunk of tokens:
///
///   dw = g S2^T + L(g v^T) a,   h = ln 2 * softmax gradient(w, dw),
///   dq' = h S1^T + L(h a^T) k
///
/// needs the sums S1, S2 before the chunk; with R1 = sum q'^T h and
/// R2 = sum w^T g over the tokens after it (and the states' gradients),
///
///   da = k R1 + v R2^T + L(q' k^T)^T h + L(g v^T)^T w,
///   dk = a R1^T + L(h a^T)^T q',   dv = a R2 + L(w a^T)^T g.
///
/// So a sequence is gone through forwards, then backwards; in segments, such
/// that only one segment's maps are in memory: the sums before each segment
/// are made first. Nothing is kept from forward but its inputs.
template <typename T>
class NestedCausalBackward {
 public:
  struct Gradients {
    at::Tensor query, pack_key, key, value, packed_query;
    at::Tensor key_state, value_state;  ///< undefined where not given
  };

  NestedCausalBackward(const NestedCausalInputs<T>& in,
                       const at::Tensor& grad_output,
                       const at::Tensor& grad_key_state,
                       const at::Tensor& grad_value_state, Gradients& gradients)
      : in_(in),
        grad_output_(grad_output),
        grad_key_state_(rows_or_none(grad_key_state)),
        grad_value_state_(rows_or_none(grad_value_state)),
        grad_query_(gradients.query),
        grad_pack_key_(gradients.pack_key),
        grad_key_(gradients.key),
        grad_value_(gradients.value),
        grad_packed_query_(gradients.packed_query),
        grad_first_key_state_(rows_or_none(gradients.key_state)),
        grad_first_value_state_(rows_or_none(gradients.value_state)),
        shared_packed_query_(gradients.packed_query.size(0) == 1),
        segment_chunks_((std::max<int64_t>(256, 2 * in.slots) + kTokens - 1) /
                        kTokens),
        groups_(split_groups(in, segment_chunks_ * kTokens)),
        keys_size_(in.width * in.stride),
        sums_size_(padded(keys_size_ + in.value_width * in.stride)),
        rests_size_(padded(keys_size_ + in.slots * in.value_width)),
        part_size_(padded(in.slots * in.width)) {}

  void run() {
    const int64_t count = static_cast<int64_t>(groups_.list.size());
    const auto options = at::CppTypeToScalarType<T>::value;
    if (any_cut(groups_)) {
      starts_ = at::empty({count, sums_size_}, options);
      rests_ = at::empty({count, rests_size_}, options);
      for_each_group([&](Thread& t, const Split& g) { sum_group(t, g); });
      accumulate_starts();
      for_each_group([&](Thread& t, const Split& g) { rest_of_group(t, g); });
      accumulate_rests();
    }
    parts_ = at::empty({count, part_size_}, options);
    for_each_group([&](Thread& t, const Split& g) { run_group(t, g); });
    sum_parts();
  }

 private:
  static Rows<T> rows_or_none(const at::Tensor& x) {
    return x.defined() ? Rows<T>(x) : Rows<T>();
  }

  /// What is kept of a chunk on the way forwards for the way back.
  struct Maps {
    T *a, *slope, *w, *h;                   ///< [tokens, stride]
    T *query_key, *grad_value, *h_a, *w_a;  ///< lower triangles
  };
  int64_t maps_size() const {
    return 4 * kTokens * (in_.stride + kChunkStride);
  }

  /// One thread's memory.
  struct Thread {
    explicit Thread(const NestedCausalBackward& b)
        : scratch(b.thread_size()),
          chunk(b.in_, scratch),
          sums(scratch.take(b.sums_size_)),
          rests(scratch.take(b.rests_size_)),
          transposed_sum(scratch.take(b.in_.slots * b.in_.width)),
          transposed_rest1(scratch.take(b.in_.slots * b.in_.width)),
          transposed_rest2(scratch.take(b.in_.value_width * b.in_.stride)),
          transposed(scratch.take(
              kChunkStride *
              std::max({b.in_.width, b.in_.value_width, b.in_.slots}))),
          gradient(scratch.take(kTokens * b.in_.value_width)),
          gradient_buffer(scratch.take(kTokens * b.in_.value_width)),
          grad_a(scratch.take(kTokens * b.in_.stride)),
          out(scratch.take(kTokens *
                           std::max(b.in_.width, b.in_.value_width))) {
      for (int64_t i = 0; i < b.segment_chunks_; ++i) {
        T* tiles = scratch.take(4 * kTokens * b.in_.stride);
        T* lower = scratch.take(4 * kTokens * kChunkStride);
        const int64_t tile = kTokens * b.in_.stride;
        const int64_t triangle = kTokens * kChunkStride;
        maps.push_back({tiles, tiles + tile, tiles + 2 * tile, tiles + 3 * tile,
                        lower, lower + triangle, lower + 2 * triangle,
                        lower + 3 * triangle});
      }
    }
    Scratch<T> scratch;
    Chunk<T> chunk;
    T *sums, *rests;  ///< S1 [width, stride], S2^T [dv, stride]; R1, R2
    T *transposed_sum, *transposed_rest1, *transposed_rest2, *transposed;
    T *gradient, *gradient_buffer, *grad_a, *out;
    std::vector<Maps> maps;
    std::vector<T> segment_sums;
  };
  int64_t thread_size() const {
    return Chunk<T>::size(in_) + sums_size_ + rests_size_ +
           2 * in_.slots * in_.width + in_.value_width * in_.stride +
           kChunkStride * std::max({in_.width, in_.value_width, in_.slots}) +
           kTokens * (2 * in_.value_width + in_.stride +
                      std::max(in_.width, in_.value_width)) +
           segment_chunks_ * (maps_size() + 2 * kSlotPad);
  }

  template <typename Body>
  void for_each_group(Body body) {
    const int64_t count = static_cast<int64_t>(groups_.list.size());
    at::parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
      Thread thread(*this);
      for (int64_t i = begin; i < end; ++i) body(thread, groups_.list[i]);
    });
  }

  T* start(int64_t group) {
    return starts_.template data_ptr<T>() + group * sums_size_;
  }
  T* rest(int64_t group) {
    return rests_.template data_ptr<T>() + group * rests_size_;
  }
  T* part(int64_t group) {
    return parts_.template data_ptr<T>() + group * part_size_;
  }
  bool is_last(const Split& group) const {
    return group.begin + group.length >=
           in_.sequences[group.sequence].query_length;
  }

  // --- Sums before a group, sums after it ----------------------------------

  void add_sums(const Chunk<T>& chunk, const T* a, T* sums) const {
    chunk.add_keys(a, sums);
    tile_kernels<T>().gemm(in_.value_width, in_.columns, chunk.tokens,
                           chunk.value.data, 1, chunk.value.stride, a,
                           in_.stride, sums + keys_size_, in_.stride, true);
  }
  void add_rests(const Thread& t, const Maps& maps, T* rests) const {
    const auto& tiles = tile_kernels<T>();
    tiles.gemm(in_.width, in_.columns, t.chunk.tokens, t.chunk.query, 1,
               in_.width, maps.h, in_.stride, rests, in_.stride, true);
    tiles.gemm(in_.slots, in_.value_width, t.chunk.tokens, maps.w, 1,
               in_.stride, t.gradient, in_.value_width, rests + keys_size_,
               in_.value_width, true);
  }

  void add_sums_of(Thread& t, int64_t begin, int64_t length, T* sums) {
    for (int64_t at = 0; at < length; at += kTokens) {
      t.chunk.load(begin + at, std::min(kTokens, length - at));
      t.chunk.pack(t.grad_a, nullptr);
      add_sums(t.chunk, t.grad_a, sums);
    }
  }

  void sum_group(Thread& t, const Split& group) {
    std::fill_n(start(group.index), sums_size_, T(0));
    if (is_last(group)) return;
    t.chunk.move_to_head(group.sequence, group.head);
    add_sums_of(t, group.begin, group.length, start(group.index));
  }

  void rest_of_group(Thread& t, const Split& group) {
    std::fill_n(rest(group.index), rests_size_, T(0));
    if (group.begin == 0) return;
    t.chunk.move_to_head(group.sequence, group.head);
    std::copy_n(start(group.index), sums_size_, t.sums);
    for (int64_t at = 0; at < group.length; at += kTokens) {
      t.chunk.load(group.begin + at, std::min(kTokens, group.length - at));
      make_maps(t, t.maps[0]);
      add_rests(t, t.maps[0], rest(group.index));
      add_sums(t.chunk, t.maps[0].a, t.sums);
    }
  }

  /// Turns the groups' own sums into what stands before each.
  void accumulate_starts() {
    const int64_t heads = static_cast<int64_t>(groups_.first.size()) - 1;
    std::vector<T> running(sums_size_);
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t first = groups_.first[h], last = groups_.first[h + 1];
      read_first_sums(groups_.list[first], running.data());
      for (int64_t i = first; i < last; ++i) {
        std::swap_ranges(running.begin(), running.end(), start(i));
        tile_kernels<T>().add(sums_size_, start(i), running.data());
      }
    }
  }
  void accumulate_rests() {
    const int64_t heads = static_cast<int64_t>(groups_.first.size()) - 1;
    std::vector<T> running(rests_size_);
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t first = groups_.first[h], last = groups_.first[h + 1];
      read_last_rests(groups_.list[first], running.data());
      for (int64_t i = last - 1; i >= first; --i) {
        std::swap_ranges(running.begin(), running.end(), rest(i));
        tile_kernels<T>().add(rests_size_, rest(i), running.data());
      }
    }
  }

  void read_first_sums(const Split& group, T* sums) const {
    std::fill_n(sums, sums_size_, T(0));
    if (!in_.key_state.defined()) return;
    const Tile<T> keys =
        in_.key_state.read(group.sequence, group.head, 0, in_.width, nullptr);
    for (int64_t i = 0; i < in_.width; ++i) {
      std::copy_n(keys.data + i * keys.stride, in_.slots,
                  sums + i * in_.stride);
    }
    const Tile<T> values =
        in_.value_state.read(group.sequence, group.head, 0, in_.slots, nullptr);
    transpose_padded(in_.slots, in_.value_width, values, T(1),
                     sums + keys_size_, in_.stride);
  }

  void read_last_rests(const Split& group, T* rests) const {
    std::fill_n(rests, rests_size_, T(0));
    if (grad_key_state_.defined()) {
      const Tile<T> keys = grad_key_state_.read(group.sequence, group.head, 0,
                                                in_.width, nullptr);
      for (int64_t i = 0; i < in_.width; ++i) {
        std::copy_n(keys.data + i * keys.stride, in_.slots,
                    rests + i * in_.stride);
      }
    }
    if (!grad_value_state_.defined()) return;
    const Tile<T> values = grad_value_state_.read(group.sequence, group.head, 0,
                                                  in_.slots, nullptr);
    for (int64_t i = 0; i < in_.slots; ++i) {
      std::copy_n(values.data + i * values.stride, in_.value_width,
                  rests + keys_size_ + i * in_.value_width);
    }
  }

  // --- One group -----------------------------------------------------------

  void run_group(Thread& t, const Split& group) {
    t.chunk.move_to_head(group.sequence, group.head);
    if (starts_.defined()) {
      std::copy_n(start(group.index), sums_size_, t.sums);
      std::copy_n(rest(group.index), rests_size_, t.rests);
    } else {
      read_first_sums(group, t.sums);
      read_last_rests(group, t.rests);
    }
    std::fill_n(part(group.index), part_size_, T(0));
    const int64_t size = segment_chunks_ * kTokens;
    const int64_t segments = (group.length + size - 1) / size;
    t.segment_sums.resize(segments * sums_size_);
    for (int64_t s = 0; s < segments; ++s) {
      std::copy_n(t.sums, sums_size_, t.segment_sums.data() + s * sums_size_);
      if (s + 1 < segments) {
        add_sums_of(t, group.begin + s * size, size, t.sums);
      }
    }
    for (int64_t s = segments - 1; s >= 0; --s) {
      std::copy_n(t.segment_sums.data() + s * sums_size_, sums_size_, t.sums);
      run_segment(t, group, s * size, std::min(size, group.length - s * size));
    }
    if (group.begin > 0 || !grad_first_key_state_.defined()) return;
    grad_first_key_state_.write(group.sequence, group.head, 0, in_.width,
                                t.rests, in_.stride);
    grad_first_value_state_.write(group.sequence, group.head, 0, in_.slots,
                                  t.rests + keys_size_, in_.value_width);
  }

  void run_segment(Thread& t, const Split& group, int64_t begin,
                   int64_t length) {
    const int64_t chunks = (length + kTokens - 1) / kTokens;
    const auto load = [&](int64_t i) {
      t.chunk.load(group.begin + begin + i * kTokens,
                   std::min(kTokens, length - i * kTokens));
    };
    for (int64_t i = 0; i < chunks; ++i) {
      load(i);
      make_maps(t, t.maps[i]);
      query_gradient(t, t.maps[i]);
      if (i + 1 < chunks) add_sums(t.chunk, t.maps[i].a, t.sums);
    }
    for (int64_t i = chunks - 1; i >= 0; --i) {
      if (i + 1 < chunks) {
        load(i);
        t.chunk.load_query();
        load_gradient(t);
      }
      key_gradients(t, t.maps[i], part(group.index));
      add_rests(t, t.maps[i], t.rests);
    }
  }

  /// gradient = dy / t.
  void load_gradient(Thread& t) const {
    const Tile<T> g =
        read_dense(grad_output_, t.chunk.batch, t.chunk.head(), t.chunk.first,
                   t.chunk.tokens, t.gradient_buffer);
    std::copy_n(g.data, t.chunk.tokens * in_.value_width, t.gradient);
    tile_kernels<T>().scale_rows(t.chunk.tokens, in_.value_width, t.gradient,
                                 in_.value_width, t.chunk.inverse_count);
  }

  /// a, w, h and the triangles of q' k^T and g v^T, from the sums before.
  void make_maps(Thread& t, Maps& maps) const {
    Chunk<T>& chunk = t.chunk;
    const int64_t tokens = chunk.tokens;
    chunk.pack(maps.a, maps.slope);
    chunk.load_query();
    load_gradient(t);
    transpose_padded(tokens, in_.width, chunk.key, T(1), t.transposed,
                     kChunkStride);
    lower_scores(tokens, in_.width, chunk.query, in_.width, t.transposed,
                 maps.query_key);
    deep_gemm(tokens, in_.columns, in_.width, chunk.query, in_.width, t.sums,
              in_.stride, maps.w, in_.stride, false);
    add_lower(tokens, in_.columns, maps.query_key, maps.a, in_.stride, maps.w,
              in_.stride);
    softmax_kernels<T>().rows_forward(tokens, in_.columns, maps.w, in_.stride,
                                      chunk.weights(), false, nullptr);
    transpose_padded(tokens, in_.value_width, chunk.value, T(1), t.transposed,
                     kChunkStride);
    lower_scores(tokens, in_.value_width, t.gradient, in_.value_width,
                 t.transposed, maps.grad_value);
    deep_gemm(tokens, in_.columns, in_.value_width, t.gradient, in_.value_width,
              t.sums + keys_size_, in_.stride, maps.h, in_.stride, false);
    add_lower(tokens, in_.columns, maps.grad_value, maps.a, in_.stride, maps.h,
              in_.stride);
    softmax_kernels<T>().rows_backward(
        tokens, in_.columns, maps.w, in_.stride, maps.h, in_.stride,
        static_cast<T>(1 / kLog2E), nullptr, nullptr, chunk.unpack_dropout());
  }

  void query_gradient(Thread& t, Maps& maps) const {
    const int64_t tokens = t.chunk.tokens;
    transpose_padded<T>(tokens, in_.slots, {maps.a, in_.stride}, T(1),
                        t.transposed, kChunkStride);
    lower_scores(tokens, in_.slots, maps.h, in_.stride, t.transposed, maps.h_a);
    lower_scores(tokens, in_.slots, maps.w, in_.stride, t.transposed, maps.w_a);
    softmax_kernels<T>().transpose(in_.width, in_.slots, t.sums, in_.stride,
                                   T(1), t.transposed_sum, in_.width);
    deep_gemm(tokens, in_.width, in_.slots, maps.h, in_.stride,
              t.transposed_sum, in_.width, t.out, in_.width, false);
    add_lower(tokens, in_.width, maps.h_a, t.chunk.key.data, t.chunk.key.stride,
              t.out, in_.width);
    tile_kernels<T>().scale_rows(tokens, in_.width, t.out, in_.width,
                                 t.chunk.query_factor);
    write(grad_query_, t, in_.width);
  }

  void key_gradients(Thread& t, Maps& maps, T* grad_packed_query) const {
    const Chunk<T>& chunk = t.chunk;
    const auto& tiles = tile_kernels<T>();
    const int64_t tokens = chunk.tokens, d = in_.width, dv = in_.value_width;
    const T* rest2 = t.rests + keys_size_;
    softmax_kernels<T>().transpose(d, in_.slots, t.rests, in_.stride, T(1),
                                   t.transposed_rest1, d);
    transpose_padded<T>(in_.slots, dv, {rest2, dv}, T(1), t.transposed_rest2,
                        in_.stride);
    deep_gemm(tokens, d, in_.slots, maps.a, in_.stride, t.transposed_rest1, d,
              t.out, d, false);
    add_lower_transposed(tokens, d, maps.h_a, chunk.query, d, t.out, d);
    write(grad_key_, t, d);
    deep_gemm(tokens, dv, in_.slots, maps.a, in_.stride, rest2, dv, t.out, dv,
              false);
    add_lower_transposed(tokens, dv, maps.w_a, t.gradient, dv, t.out, dv);
    write(grad_value_, t, dv);
    deep_gemm(tokens, in_.columns, d, chunk.key.data, chunk.key.stride, t.rests,
              in_.stride, t.grad_a, in_.stride, false);
    deep_gemm(tokens, in_.columns, dv, chunk.value.data, chunk.value.stride,
              t.transposed_rest2, in_.stride, t.grad_a, in_.stride, true);
    add_lower_transposed(tokens, in_.columns, maps.query_key, maps.h,
                         in_.stride, t.grad_a, in_.stride);
    add_lower_transposed(tokens, in_.columns, maps.grad_value, maps.w,
                         in_.stride, t.grad_a, in_.stride);
    softmax_kernels<T>().multiply(tokens, in_.columns, t.grad_a, in_.stride,
                                  maps.slope, in_.stride);
    deep_gemm(tokens, d, in_.slots, t.grad_a, in_.stride,
              chunk.packed_query.data, chunk.packed_query.stride, t.out, d,
              false);
    for (int64_t i = 0; i < tokens * d; ++i) t.out[i] *= in_.scale;
    write(grad_pack_key_, t, d);
    tiles.gemm(in_.slots, d, tokens, t.grad_a, 1, in_.stride,
               chunk.pack_key.data, chunk.pack_key.stride, grad_packed_query, d,
               true);
  }

  void write(const Rows<T>& rows, const Thread& t, int64_t width) const {
    rows.write(t.chunk.batch, t.chunk.head(), t.chunk.first, t.chunk.tokens,
               t.out, width);
  }

  /// The gradient of packed_query, over the batch where that is shared.
  void sum_parts() {
    const int64_t sequences = static_cast<int64_t>(in_.sequences.size());
    const int64_t targets = shared_packed_query_ ? 1 : sequences;
    std::vector<T> sum(part_size_);
    for (int64_t i = 0; i < targets * in_.heads; ++i) {
      const int64_t target = i / in_.heads, head = i % in_.heads;
      const int64_t last = shared_packed_query_ ? sequences : target + 1;
      std::fill(sum.begin(), sum.end(), T(0));
      for (int64_t s = target; s < last; ++s) {
        const int64_t at = s * in_.heads + head;
        add_parts(parts_.template const_data_ptr<T>(), part_size_,
                  groups_.first[at], groups_.first[at + 1], part_size_,
                  sum.data());
      }
      for (T& x : sum) x *= in_.scale;
      grad_packed_query_.write(target, head, 0, in_.slots, sum.data(),
                               in_.width);
    }
  }

  const NestedCausalInputs<T>& in_;
  Rows<T> grad_output_, grad_key_state_, grad_value_state_;
  Rows<T> grad_query_, grad_pack_key_, grad_key_, grad_value_,
      grad_packed_query_, grad_first_key_state_, grad_first_value_state_;
  bool shared_packed_query_;
  int64_t segment_chunks_;
  Splits groups_;
  int64_t keys_size_, sums_size_, rests_size_, part_size_;
  at::Tensor starts_, rests_, parts_;
};

}  // namespace luna::cpu
