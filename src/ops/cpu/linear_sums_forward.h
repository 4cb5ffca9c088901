#pragma once

// The forward half of linear_sums.h.

namespace luna::cpu {

/// Scores inside a chunk, 16 rows at a time: rows [first, first + rows) of
/// left . right^T, zero past the diagonal. `right_t` is right, transposed.
template <typename T>
struct TriangleRows {
  static constexpr int64_t kRows = 16;

  void compute(int64_t first, int64_t rows, int64_t depth, Tile<T> left,
               const T* right_t) {
    columns = first + rows;
    tile_kernels<T>().gemm(rows, columns, depth,
                           left.data + first * left.stride, left.stride, 1,
                           right_t, kChunk, scores, kChunk, false);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = first + i + 1; j < columns; ++j) {
        scores[i * kChunk + j] = T(0);
      }
    }
  }

  int64_t columns = 0;
  alignas(64) T scores[kRows * kChunk];
};

/// Divides a tile's rows by their guarded denominators and writes it out.
template <typename T>
void finish_rows(const SumsProblem<T>& p, const Rows<T>& output,
                 const Sequence& one, int64_t head, int64_t first,
                 int64_t count, T* numerator, int64_t stride, bool in_place,
                 const T* den, T* saved_den) {
  const int64_t row = one.query_begin + first;
  if (p.normalize) {
    T inverse[kChunk];
    for (int64_t t = 0; t < count; ++t) inverse[t] = T(1) / p.guarded(den[t]);
    tile_kernels<T>().scale_rows(count, p.width, numerator, stride, inverse);
    if (saved_den != nullptr) {
      std::copy_n(
          den, count,
          saved_den + (one.batch * p.heads + head) * p.query_length + row);
    }
  }
  if (!in_place) {
    output.write(one.batch, head, row, count, numerator, stride);
  }
}

template <typename T, typename Features>
void forward_all(const SumsProblem<T>& p, const Features& query,
                 const Features& key, const ops::LinearSumsResult& result) {
  const int64_t size = p.state_size();
  T* state = result.state.template mutable_data_ptr<T>();
  // Sums over the keys, in parts.
  const auto key_spans = cut_into_spans(
      p, p.segment, [](const Sequence& one) { return one.key_length; });
  std::vector<T> parts;
  std::vector<int64_t> first_part(p.pairs() + 1, 0);
  for (const Span& span : key_spans) {
    first_part[span.sequence * p.heads + span.head + 1]++;
  }
  for (int64_t i = 0; i < p.pairs(); ++i) first_part[i + 1] += first_part[i];
  const bool split = static_cast<int64_t>(key_spans.size()) > p.pairs();
  if (split) parts.resize(key_spans.size() * size);
  for_each_span<T>(key_spans, [&] {
    return [&, keys = KeyTiles<T, Features>(p, key),
            sum = SumState<T>(p.features, p.width)](int64_t i) mutable {
      const Span& span = key_spans[i];
      sum.read(span.index == 0 ? p.initial_state(span.sequence, span.head)
                               : nullptr);
      add_keys(p, span, keys, sum);
      sum.write(split ? parts.data() + i * size
                      : state + (span.sequence * p.heads + span.head) * size);
    };
  });
  if (split) {
    at::parallel_for(0, p.pairs(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        T* to = state + i * size;
        std::copy_n(parts.data() + first_part[i] * size, size, to);
        for (int64_t j = first_part[i] + 1; j < first_part[i + 1]; ++j) {
          tile_kernels<T>().add(size, parts.data() + j * size, to);
        }
      }
    });
    parts = {};
  }
  // Every query against the whole sum.
  const Rows<T> output(result.output);
  T* saved_den = result.denominator.numel() > 0
                     ? result.denominator.template mutable_data_ptr<T>()
                     : nullptr;
  const auto query_spans = cut_into_spans(
      p, p.segment, [](const Sequence& one) { return one.query_length; });
  for_each_span<T>(query_spans, [&] {
    return [&, scratch = typename Features::Scratch(query, kChunk),
            z = std::vector<T>(p.features),
            buffer = std::vector<T>(kChunk * p.width)](int64_t i) mutable {
      const auto& k = tile_kernels<T>();
      const Span& span = query_spans[i];
      const Sequence& one = p.sequences[span.sequence];
      const T* s = state + (span.sequence * p.heads + span.head) * size;
      for (int64_t f = 0; f < p.features; ++f) {
        z[f] = s[f * (p.width + 1) + p.width];
      }
      for (int64_t t = span.begin; t < span.end; t += kChunk) {
        const int64_t count = std::min(kChunk, span.end - t);
        const int64_t row = one.query_begin + t;
        const Tile<T> phi =
            query.forward(one.batch, span.head, row, count, scratch);
        T* place = output.in_place(one.batch, span.head, row);
        T* numerator = place != nullptr ? place : buffer.data();
        const int64_t stride = place != nullptr ? output.row_stride() : p.width;
        k.gemm(count, p.width, p.features, phi.data, phi.stride, 1, s,
               p.width + 1, numerator, stride, false);
        T den[kChunk];
        if (p.normalize) {
          k.row_dots(count, p.features, phi.data, phi.stride, z.data(), 0, den);
        }
        finish_rows(p, output, one, span.head, t, count, numerator, stride,
                    place != nullptr, den, saved_den);
      }
    };
  });
}

/// The states at the spans' starts [spans, F, dv+1], from a pass over the
/// keys; empty where each head is one span. Fills the final state too.
template <typename T, typename Features>
std::vector<T> span_starts(const SumsProblem<T>& p,
                           const std::vector<Span>& spans,
                           const Features& key) {
  std::vector<T> starts;
  if (static_cast<int64_t>(spans.size()) == p.pairs()) return starts;
  const int64_t size = p.state_size();
  starts.resize(spans.size() * size);
  // Span i's keys go to the start of span i + 1, then a running sum.
  for_each_span<T>(spans, [&] {
    return [&, keys = KeyTiles<T, Features>(p, key),
            sum = SumState<T>(p.features, p.width)](int64_t i) mutable {
      const Span& span = spans[i];
      if (span.index == 0) {
        sum.read(p.initial_state(span.sequence, span.head));
        sum.write(starts.data() + i * size);
      }
      if (i + 1 == static_cast<int64_t>(spans.size())) return;
      if (spans[i + 1].index == 0) return;
      sum.clear();
      add_keys(p, span, keys, sum);
      sum.write(starts.data() + (i + 1) * size);
    };
  });
  for (size_t i = 1; i < spans.size(); ++i) {
    if (spans[i].index == 0) continue;
    tile_kernels<T>().add(size, starts.data() + (i - 1) * size,
                          starts.data() + i * size);
  }
  return starts;
}

template <typename T, typename Features>
void forward_causal(const SumsProblem<T>& p, const Features& query,
                    const Features& key, const ops::LinearSumsResult& result) {
  const int64_t size = p.state_size();
  const Rows<T> output(result.output);
  T* state = result.state.template mutable_data_ptr<T>();
  T* saved_den = result.denominator.numel() > 0
                     ? result.denominator.template mutable_data_ptr<T>()
                     : nullptr;
  T* saved_states = result.segment_states.numel() > 0
                        ? result.segment_states.template mutable_data_ptr<T>()
                        : nullptr;
  const auto spans =
      cut_into_spans(p, causal_span_length(p),
                     [](const Sequence& one) { return one.query_length; });
  const std::vector<T> starts = span_starts(p, spans, key);
  for_each_span<T>(spans, [&] {
    return [&, keys = KeyTiles<T, Features>(p, key),
            sum = SumState<T>(p.features, p.width),
            scratch = typename Features::Scratch(query, kChunk),
            key_t = std::vector<T>(p.features * kChunk),
            buffer = std::vector<T>(kChunk * p.width)](int64_t i) mutable {
      const auto& k = tile_kernels<T>();
      const Span& span = spans[i];
      const Sequence& one = p.sequences[span.sequence];
      sum.read(starts.empty() ? p.initial_state(span.sequence, span.head)
                              : starts.data() + i * size);
      TriangleRows<T> triangle;
      for (int64_t t = span.begin; t < span.end; t += kChunk) {
        if (saved_states != nullptr && t % p.segment == 0) {
          const int64_t segment =
              p.first_segment[span.sequence] + t / p.segment;
          sum.write(saved_states + (segment * p.heads + span.head) * size);
        }
        const int64_t count = std::min(kChunk, span.end - t);
        const int64_t row = one.query_begin + t;
        const Tile<T> phi =
            query.forward(one.batch, span.head, row, count, scratch);
        keys.load(one, span.head, t, count);
        T* place = output.in_place(one.batch, span.head, row);
        T* numerator = place != nullptr ? place : buffer.data();
        const int64_t stride = place != nullptr ? output.row_stride() : p.width;
        T den[kChunk];
        k.gemm(count, p.width, p.features, phi.data, phi.stride, 1,
               sum.s.data(), p.width, numerator, stride, false);
        k.row_dots(count, p.features, phi.data, phi.stride, sum.z.data(), 0,
                   den);
        k.transpose(count, p.features, keys.weighted.data, keys.weighted.stride,
                    key_t.data(), kChunk);
        for (int64_t r = 0; r < count; r += triangle.kRows) {
          const int64_t rows = std::min(triangle.kRows, count - r);
          triangle.compute(r, rows, p.features, phi, key_t.data());
          for (int64_t j = 0; j < rows; ++j) {
            const T* scores = triangle.scores + j * kChunk;
            T total = 0;
            for (int64_t c = 0; c <= r + j; ++c) total += scores[c];
            den[r + j] += total;
          }
          k.gemm(rows, p.width, triangle.columns, triangle.scores, kChunk, 1,
                 keys.v.data, keys.v.stride, numerator + r * stride, stride,
                 true);
        }
        finish_rows(p, output, one, span.head, t, count, numerator, stride,
                    place != nullptr, den, saved_den);
        sum.add(count, keys.weighted, keys.v);
      }
      const bool last = span.end == one.query_length;
      if (last) {
        sum.write(state + (span.sequence * p.heads + span.head) * size);
      }
    };
  });
}

template <typename T, typename Features>
ops::LinearSumsResult forward_sums(const ops::LinearSums& sums,
                                   const Features& query, const Features& key,
                                   bool save) {
  const SumsProblem<T> p(sums, query.width());
  auto result = ops::empty_result(sums, query.width(), save);
  on_huge_pages(result.output);
  if (save && p.causal) {  // rows that a packing may leave over
    result.segment_states
        .narrow(0, p.segments, result.segment_states.size(0) - p.segments)
        .zero_();
  }
  if (p.causal) {
    forward_causal(p, query, key, result);
  } else {
    forward_all(p, query, key, result);
  }
  return result;
}

}  // namespace luna::cpu
