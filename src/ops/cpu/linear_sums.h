#pragma once

// Linear attention on tiles of tokens, for any source of features (see
// features.h). The whole of it, with V's last column 1 for the normaliser:
//
//   not causal  S = S_0 + sum_j w_j phi(k_j) [v_j, 1]^T over splits of the
//               keys, parts added in a fixed order; then phi(q) S.
//   causal      chunks of 64 tokens: what came before by S, what is inside by
//               a 64 x 64 triangle of scores; then S takes the chunk in.
//
// A sequence's tokens form segments (states saved for the backward) and these
// form spans, one a task: with enough heads a span is the whole sequence; else
// a pass over the keys first finds the state at each span's start. The
// backward walks spans from the end with the sums over later queries,
// R = sum_t phi(q_t) [dn_t, dd_t]^T.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <vector>

#include "ops/checks.h"
#include "ops/cpu/features.h"
#include "ops/cpu/huge_pages.h"
#include "ops/cpu/rows.h"
#include "ops/linear_sums.h"

namespace luna::cpu {

constexpr int64_t kChunk = 64;

/// S [F,dv] and the normaliser z [F], while tiles are added to it.
template <typename T>
struct SumState {
  SumState(int64_t features, int64_t width)
      : features(features), width(width), s(features * width), z(features) {}

  void clear() {
    std::fill(s.begin(), s.end(), T(0));
    std::fill(z.begin(), z.end(), T(0));
  }
  /// From and to rows of [F, dv + 1]; null counts as zero.
  void read(const T* rows) {
    if (rows == nullptr) return clear();
    for (int64_t f = 0; f < features; ++f) {
      std::copy_n(rows + f * (width + 1), width, s.data() + f * width);
      z[f] = rows[f * (width + 1) + width];
    }
  }
  void write(T* rows) const {
    for (int64_t f = 0; f < features; ++f) {
      std::copy_n(s.data() + f * width, width, rows + f * (width + 1));
      rows[f * (width + 1) + width] = z[f];
    }
  }
  /// S += phi^T V, z += sum of phi's rows.
  void add(int64_t count, Tile<T> phi, Tile<T> v) {
    const auto& k = tile_kernels<T>();
    k.gemm(features, width, count, phi.data, 1, phi.stride, v.data, v.stride,
           s.data(), width, true);
    k.add_rows(count, features, phi.data, phi.stride, nullptr, z.data());
  }

  int64_t features, width;
  std::vector<T> s, z;
};

template <typename T>
struct SumsProblem {
  SumsProblem(const ops::LinearSums& sums, int64_t features)
      : sequences(list_sequences(sums.query.size(0), sums.query.size(2),
                                 sums.key.size(2),
                                 sums.cu_seqlens_q.value_or(at::Tensor()),
                                 sums.cu_seqlens_k.value_or(at::Tensor()))),
        heads(sums.query.size(1)),
        query_length(sums.query.size(2)),
        key_length(sums.key.size(2)),
        features(features),
        width(sums.value.size(3)),
        segment(ops::segment_length(features, width).expect_int()),
        causal(sums.causal),
        normalize(sums.normalize),
        eps(static_cast<T>(sums.eps)),
        value(sums.value) {
    if (sums.key_weight.has_value()) {
      weight_tensor = weight_as<T>(*sums.key_weight);
      weight = weight_tensor.template const_data_ptr<T>();
      weight_heads = weight_tensor.size(1);
    }
    if (sums.state.has_value()) {
      state_tensor = sums.state->detach().contiguous();
      state = state_tensor.template const_data_ptr<T>();
    }
    int64_t base = 0;
    for (const Sequence& one : sequences) {
      first_segment.push_back(base);
      base += (one.query_length + segment - 1) / segment;
    }
    segments = base;
  }

  int64_t pairs() const {
    return static_cast<int64_t>(sequences.size()) * heads;
  }
  int64_t state_size() const { return features * (width + 1); }
  const T* initial_state(int64_t sequence, int64_t head) const {
    return state == nullptr ? nullptr
                            : state + (sequence * heads + head) * state_size();
  }
  /// The weights of a sequence's keys, or null.
  const T* weights(const Sequence& one, int64_t head) const {
    if (weight == nullptr) return nullptr;
    const int64_t row =
        one.batch * weight_heads + (weight_heads == 1 ? 0 : head);
    return weight + row * key_length + one.key_begin;
  }
  /// The first key that takes part; rows that see none before it and start
  /// from no state have no gradient.
  int64_t first_live_key(const Sequence& one, int64_t head) const {
    if (state != nullptr) return 0;
    const T* w = weights(one, head);
    if (w == nullptr) return 0;
    return std::find_if(w, w + one.key_length, [](T x) { return x > T(0); }) -
           w;
  }
  T guarded(T den) const {
    return den < T(0) ? std::min(den, -eps) : std::max(den, eps);
  }

  std::vector<Sequence> sequences;
  std::vector<int64_t> first_segment;
  int64_t heads, query_length, key_length, features, width, segment;
  bool causal, normalize;
  T eps;
  Rows<T> value;
  at::Tensor weight_tensor, state_tensor;
  const T* weight = nullptr;
  const T* state = nullptr;
  int64_t weight_heads = 1;
  int64_t segments = 0;  ///< of all sequences
};

/// Tokens [begin, end) of one head of one sequence.
struct Span {
  int64_t sequence, head, begin, end;
  int64_t index;  ///< among the spans of this head
};

/// All tokens cut into spans of `length`, at least one span a head.
template <typename T, typename LengthOf>
std::vector<Span> cut_into_spans(const SumsProblem<T>& p, int64_t length,
                                 LengthOf length_of) {
  std::vector<Span> spans;
  for (int64_t s = 0; s < static_cast<int64_t>(p.sequences.size()); ++s) {
    const int64_t total = length_of(p.sequences[s]);
    for (int64_t h = 0; h < p.heads; ++h) {
      int64_t begin = 0, index = 0;
      do {
        const int64_t end = std::min(total, begin + length);
        spans.push_back({s, h, begin, end, index++});
        begin = end;
      } while (begin < total);
    }
  }
  return spans;
}

/// How long a causal task's span is: all of the sequence where the heads alone
/// keep the threads busy.
template <typename T>
int64_t causal_span_length(const SumsProblem<T>& p) {
  const int64_t threads = at::get_num_threads();
  int64_t longest = 1;
  for (const Sequence& one : p.sequences) {
    longest = std::max(longest, one.query_length);
  }
  const int64_t pairs = std::max<int64_t>(1, p.pairs());
  if (threads == 1 || pairs >= 2 * threads) return longest;
  const int64_t parts = (4 * threads + pairs - 1) / pairs;
  const int64_t wanted = (longest + parts - 1) / parts;
  return (wanted + p.segment - 1) / p.segment * p.segment;
}

/// One tile of keys: features, the same times their weights, values.
template <typename T, typename Features>
class KeyTiles {
 public:
  KeyTiles(const SumsProblem<T>& p, const Features& features)
      : p_(p),
        features_(features),
        scratch_(features, kChunk),
        weighted_(p.weight == nullptr ? 0 : kChunk * p.features),
        values_(kChunk * p.width) {}

  void load(const Sequence& one, int64_t head, int64_t first, int64_t count) {
    phi = features_.forward(one.batch, head, one.key_begin + first, count,
                            scratch_);
    v = p_.value.read(one.batch, head, one.key_begin + first, count,
                      values_.data());
    p_.value.prefetch(one.batch, head, one.key_begin + first + count, count);
    weighted = phi;
    const T* w = p_.weights(one, head);
    weight = w == nullptr ? nullptr : w + first;
    if (w == nullptr) return;
    for (int64_t t = 0; t < count; ++t) {
      const T* from = phi.data + t * phi.stride;
      T* to = weighted_.data() + t * p_.features;
      for (int64_t f = 0; f < p_.features; ++f) to[f] = weight[t] * from[f];
    }
    weighted = {weighted_.data(), p_.features};
  }

  typename Features::Scratch& scratch() { return scratch_; }

  Tile<T> phi{}, weighted{}, v{};
  const T* weight = nullptr;

 private:
  const SumsProblem<T>& p_;
  const Features& features_;
  typename Features::Scratch scratch_;
  std::vector<T> weighted_, values_;
};

/// Adds the keys of `span` to `sum`.
template <typename T, typename Features>
void add_keys(const SumsProblem<T>& p, const Span& span,
              KeyTiles<T, Features>& keys, SumState<T>& sum) {
  const Sequence& one = p.sequences[span.sequence];
  for (int64_t t = span.begin; t < span.end; t += kChunk) {
    const int64_t count = std::min(kChunk, span.end - t);
    keys.load(one, span.head, t, count);
    sum.add(count, keys.weighted, keys.v);
  }
}

/// parts[i] = the sum of span i; null `parts` entries are skipped.
template <typename T, typename Work>
void for_each_span(const std::vector<Span>& spans, const Work& make_work) {
  at::parallel_for(0, static_cast<int64_t>(spans.size()), 1,
                   [&](int64_t begin, int64_t end) {
                     auto work = make_work();
                     for (int64_t i = begin; i < end; ++i) work(i);
                   });
}

}  // namespace luna::cpu

#include "ops/cpu/linear_sums_backward.h"
#include "ops/cpu/linear_sums_forward.h"
