#pragma once

// The causal backward of linear_sums.h. In a chunk, with A_tj = phi(q_t) .
// w_j phi(k_j) and B_tj = dn_t . v_j + dd_t for j <= t, S the sum before the
// chunk and R the sum of phi(q) [dn, dd]^T after it:
//
//   dphi(q) = [dn, dd] S^T + B (w phi(k))
//   dphi(k) = w ([v, 1] R^T + B^T phi(q))
//   dv      = (w phi(k)) R + A^T dn

namespace luna::cpu {

/// R as [F,dv] and as its transpose: one is a factor of dv, one of dphi(k).
template <typename T>
struct LaterQueries {
  LaterQueries(int64_t features, int64_t width)
      : sum(features, width), transposed(features * width) {}

  void read(const T* rows) {
    sum.read(rows);
    tile_kernels<T>().transpose(sum.features, sum.width, sum.s.data(),
                                sum.width, transposed.data(), sum.features);
  }
  void add(int64_t count, Tile<T> phi, const RowGradients<T>& rows) {
    const auto& k = tile_kernels<T>();
    k.gemm(sum.features, sum.width, count, phi.data, 1, phi.stride, rows.dn(),
           sum.width, sum.s.data(), sum.width, true);
    k.gemm(sum.width, sum.features, count, rows.dn(), 1, sum.width, phi.data,
           phi.stride, transposed.data(), sum.features, true);
    k.add_rows(count, sum.features, phi.data, phi.stride, rows.dd,
               sum.z.data());
  }

  SumState<T> sum;
  std::vector<T> transposed;
};

template <typename T, typename Features>
class CausalBackward {
 public:
  CausalBackward(const SumsProblem<T>& p, const SumsUpstream<T>& up,
                 const Features& query, const Features& key,
                 const Rows<T>& grad_value, T* grad_weight,
                 typename Features::Sink& sink)
      : p_(p),
        up_(up),
        query_(query),
        key_(key),
        grad_value_(grad_value),
        grad_weight_(grad_weight),
        sink_(sink),
        keys_(p, key),
        query_scratch_(query, kChunk),
        rows_(p),
        sum_(p.features, p.width),
        later_(p.features, p.width),
        chunk_t_(p.segment / kChunk * p.features * p.width),
        chunk_z_(p.segment / kChunk * p.features),
        key_t_(p.features * kChunk),
        value_t_(p.width * kChunk),
        a_(kChunk * kChunk),
        b_(kChunk * kChunk),
        d_query_(kChunk * p.features),
        d_key_(kChunk * p.features),
        d_value_(kChunk * p.width) {}

  /// The span's own sum phi(q) [dn, dd]^T, written as rows of a state.
  void sum_of_queries(const Span& span, T* rows) {
    const Sequence& one = p_.sequences[span.sequence];
    const int64_t live = p_.first_live_key(one, span.head);
    sum_.clear();
    const auto& k = tile_kernels<T>();
    for (int64_t t = span.begin; t < span.end; t += kChunk) {
      const int64_t count = std::min(kChunk, span.end - t);
      const Tile<T> phi = query_.forward(
          one.batch, span.head, one.query_begin + t, count, query_scratch_);
      rows_.load(up_, one, span.head, t, count, live);
      rows_.set_dd_from_output(up_, one, span.head, t, count);
      k.gemm(p_.features, p_.width, count, phi.data, 1, phi.stride, rows_.dn(),
             p_.width, sum_.s.data(), p_.width, true);
      k.add_rows(count, p_.features, phi.data, phi.stride, rows_.dd,
                 sum_.z.data());
    }
    sum_.write(rows);
  }

  /// All gradients of the span; `later` is R after it (null: zero). Leaves R
  /// before it in `before`, if asked for.
  void run(const Span& span, const T* later, T* before) {
    later_.read(later);
    const int64_t first = span.begin / p_.segment;
    const int64_t last = (span.end + p_.segment - 1) / p_.segment;
    for (int64_t s = last - 1; s >= first; --s) segment(span, s);
    if (before != nullptr) later_.sum.write(before);
  }

 private:
  void segment(const Span& span, int64_t index) {
    const Sequence& one = p_.sequences[span.sequence];
    const int64_t begin = index * p_.segment;
    const int64_t end = std::min(span.end, begin + p_.segment);
    const int64_t chunks = (end - begin + kChunk - 1) / kChunk;
    const int64_t area = p_.features * p_.width;
    const auto& k = tile_kernels<T>();
    // Forward through the segment: S^T and z before each chunk.
    sum_.read(
        up_.segment_states +
        ((p_.first_segment[span.sequence] + index) * p_.heads + span.head) *
            p_.state_size());
    k.transpose(p_.features, p_.width, sum_.s.data(), p_.width, chunk_t_.data(),
                p_.features);
    std::copy_n(sum_.z.data(), p_.features, chunk_z_.data());
    for (int64_t c = 0; c + 1 < chunks; ++c) {
      T* s_t = chunk_t_.data() + (c + 1) * area;
      T* z = chunk_z_.data() + (c + 1) * p_.features;
      std::copy_n(s_t - area, area, s_t);
      std::copy_n(z - p_.features, p_.features, z);
      keys_.load(one, span.head, begin + c * kChunk, kChunk);
      k.gemm(p_.width, p_.features, kChunk, keys_.v.data, 1, keys_.v.stride,
             keys_.weighted.data, keys_.weighted.stride, s_t, p_.features,
             true);
      k.add_rows(kChunk, p_.features, keys_.weighted.data,
                 keys_.weighted.stride, nullptr, z);
    }
    // And back.
    const int64_t live = p_.first_live_key(one, span.head);
    for (int64_t c = chunks - 1; c >= 0; --c) {
      const int64_t t = begin + c * kChunk;
      chunk(one, span.head, t, std::min(kChunk, end - t),
            chunk_t_.data() + c * area, chunk_z_.data() + c * p_.features,
            live);
    }
  }

  void chunk(const Sequence& one, int64_t head, int64_t t, int64_t count,
             const T* s_t, const T* z, int64_t live) {
    const auto& k = tile_kernels<T>();
    const int64_t f = p_.features, w = p_.width, row = one.query_begin + t;
    const Tile<T> phi =
        query_.forward(one.batch, head, row, count, query_scratch_);
    keys_.load(one, head, t, count);
    rows_.load(up_, one, head, t, count, live);
    rows_.set_dd_from_output(up_, one, head, t, count);
    k.transpose(count, f, keys_.weighted.data, keys_.weighted.stride,
                key_t_.data(), kChunk);
    k.transpose(count, w, keys_.v.data, keys_.v.stride, value_t_.data(),
                kChunk);
    triangles(count, phi);

    k.gemm(count, f, w, rows_.dn(), w, 1, s_t, f, d_query_.data(), f, false);
    k.add_outer(count, f, rows_.dd, z, d_query_.data(), f);
    for (int64_t r = 0; r < count; ++r) {
      std::copy_n(later_.sum.z.data(), f, d_key_.data() + r * f);
    }
    k.gemm(count, f, w, keys_.v.data, keys_.v.stride, 1,
           later_.transposed.data(), f, d_key_.data(), f, true);
    k.gemm(count, w, f, keys_.weighted.data, keys_.weighted.stride, 1,
           later_.sum.s.data(), w, d_value_.data(), w, false);
    for (int64_t r = 0; r < count; r += kRows) {
      const int64_t rows = std::min(kRows, count - r);
      // Rows r.. of B see columns up to r + rows; its columns r.. see rows
      // from r on.
      k.gemm(rows, f, r + rows, b_.data() + r * kChunk, kChunk, 1,
             keys_.weighted.data, keys_.weighted.stride,
             d_query_.data() + r * f, f, true);
      k.gemm(rows, f, count - r, b_.data() + r * kChunk + r, 1, kChunk,
             phi.data + r * phi.stride, phi.stride, d_key_.data() + r * f, f,
             true);
      k.gemm(rows, w, count - r, a_.data() + r * kChunk + r, 1, kChunk,
             rows_.dn() + r * w, w, d_value_.data() + r * w, w, true);
    }
    grad_value_.write(one.batch, head, one.key_begin + t, count,
                      d_value_.data(), w);
    later_.add(count, phi, rows_);
    query_.backward(one.batch, head, row, count, query_scratch_,
                    d_query_.data(), f, sink_);
    finish_keys(p_, one, head, t, count, keys_, key_, d_key_, grad_weight_,
                sink_);
  }

  // A and B, zero above the diagonal.
  void triangles(int64_t count, Tile<T> phi) {
    const auto& k = tile_kernels<T>();
    for (int64_t r = 0; r < count; r += kRows) {
      const int64_t rows = std::min(kRows, count - r), columns = r + rows;
      T* a = a_.data() + r * kChunk;
      T* b = b_.data() + r * kChunk;
      k.gemm(rows, columns, p_.features, phi.data + r * phi.stride, phi.stride,
             1, key_t_.data(), kChunk, a, kChunk, false);
      k.gemm(rows, columns, p_.width, rows_.dn() + r * p_.width, p_.width, 1,
             value_t_.data(), kChunk, b, kChunk, false);
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j <= r + i; ++j)
          b[i * kChunk + j] += rows_.dd[r + i];
        for (int64_t j = r + i + 1; j < columns; ++j) {
          a[i * kChunk + j] = T(0);
          b[i * kChunk + j] = T(0);
        }
      }
    }
  }

  static constexpr int64_t kRows = 16;
  const SumsProblem<T>& p_;
  const SumsUpstream<T>& up_;
  const Features& query_;
  const Features& key_;
  Rows<T> grad_value_;
  T* grad_weight_;
  typename Features::Sink& sink_;
  KeyTiles<T, Features> keys_;
  typename Features::Scratch query_scratch_;
  RowGradients<T> rows_;
  SumState<T> sum_;
  LaterQueries<T> later_;
  std::vector<T> chunk_t_, chunk_z_, key_t_, value_t_, a_, b_, d_query_, d_key_,
      d_value_;
};

template <typename T, typename Features, typename MakeSink>
std::vector<typename Features::Sink> backward_causal(
    const SumsProblem<T>& p, const SumsUpstream<T>& up, const Features& query,
    const Features& key, const Rows<T>& grad_value, T* grad_weight, T* grad_sum,
    const MakeSink& make_sink) {
  using Sink = typename Features::Sink;
  const int64_t size = p.state_size();
  const auto spans =
      cut_into_spans(p, causal_span_length(p),
                     [](const Sequence& one) { return one.query_length; });
  const auto count = static_cast<int64_t>(spans.size());
  const auto pair_of = [&](const Span& span) {
    return span.sequence * p.heads + span.head;
  };
  const auto upstream = [&](const Span& span) {
    return up.grad_state == nullptr ? nullptr
                                    : up.grad_state + pair_of(span) * size;
  };
  const bool last_of_head_is_all = count == p.pairs();
  // Sums over the queries of later spans.
  std::vector<T> later;
  if (!last_of_head_is_all) {
    later.resize(count * size);
    for_each_span<T>(spans, [&] {
      return [&, sink = make_sink()](int64_t i) mutable {
        if (spans[i].index == 0) return;
        CausalBackward<T, Features>(p, up, query, key, grad_value, nullptr,
                                    sink)
            .sum_of_queries(spans[i], later.data() + (i - 1) * size);
      };
    });
    for (int64_t i = count - 1; i >= 0; --i) {
      T* own = later.data() + i * size;
      const bool last = i + 1 == count || spans[i + 1].index == 0;
      if (last) {
        std::fill_n(own, size, T(0));
        if (const T* from = upstream(spans[i])) std::copy_n(from, size, own);
      } else {
        tile_kernels<T>().add(size, own + size, own);
      }
    }
  }
  return run_groups<Sink>(count, make_sink, [&](Sink& sink) {
    return [&, task = CausalBackward<T, Features>(p, up, query, key, grad_value,
                                                  grad_weight,
                                                  sink)](int64_t i) mutable {
      const Span& span = spans[i];
      task.run(span,
               last_of_head_is_all ? upstream(span) : later.data() + i * size,
               span.index == 0 ? grad_sum + pair_of(span) * size : nullptr);
    };
  });
}

}  // namespace luna::cpu
