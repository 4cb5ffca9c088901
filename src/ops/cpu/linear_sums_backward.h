#pragma once

// The backward half of linear_sums.h.

namespace luna::cpu {

/// What the backward of the sums gives beside the features' own gradients.
struct SumsGradients {
  at::Tensor value, key_weight, state;
};

/// What it reads: the forward's results and the gradients of them.
template <typename T>
struct SumsUpstream {
  Rows<T> grad_output, output;
  const T* denominator = nullptr;     ///< [B,H,n]
  const T* grad_state = nullptr;      ///< [S,H,F,dv+1] or null
  const T* state = nullptr;           ///< final states, not causal
  const T* segment_states = nullptr;  ///< causal
};

/// A tile of dn = dout / den and dd, the gradients of a row's numerator and
/// denominator: dd = -(dn . numerator) / den, 0 where the guard makes den a
/// constant. Both are zero for rows that see no key.
template <typename T>
class RowGradients {
 public:
  explicit RowGradients(const SumsProblem<T>& p)
      : p_(p), dn_(kChunk * p.width), buffer_(kChunk * p.width) {}

  void load(const SumsUpstream<T>& up, const Sequence& one, int64_t head,
            int64_t first, int64_t count, int64_t first_live_key) {
    const int64_t row = one.query_begin + first;
    const Tile<T> grad =
        up.grad_output.read(one.batch, head, row, count, buffer_.data());
    up.grad_output.prefetch(one.batch, head, row + count, count);
    const T* den =
        p_.normalize ? up.denominator +
                           (one.batch * p_.heads + head) * p_.query_length + row
                     : nullptr;
    for (int64_t t = 0; t < count; ++t) {
      const bool dead =
          p_.causal ? first + t < first_live_key
                    : first_live_key == one.key_length && first_live_key > 0;
      const T inverse = dead           ? T(0)
                        : p_.normalize ? T(1) / p_.guarded(den[t])
                                       : T(1);
      const T* from = grad.data + t * grad.stride;
      T* to = dn_.data() + t * p_.width;
      for (int64_t j = 0; j < p_.width; ++j) to[j] = from[j] * inverse;
      const bool varies = p_.normalize && std::abs(den[t]) > p_.eps;
      factor_[t] = varies ? -inverse : T(0);
    }
  }

  /// dd from products[t] = dn_t . numerator_t.
  void set_dd(int64_t count, const T* products) {
    for (int64_t t = 0; t < count; ++t) dd[t] = factor_[t] * products[t];
  }
  /// dd from the output, which is numerator / den: dd = -dn . output.
  void set_dd_from_output(const SumsUpstream<T>& up, const Sequence& one,
                          int64_t head, int64_t first, int64_t count) {
    const Tile<T> out = up.output.read(one.batch, head, one.query_begin + first,
                                       count, buffer_.data());
    tile_kernels<T>().row_dots(count, p_.width, dn_.data(), p_.width, out.data,
                               out.stride, dd);
    for (int64_t t = 0; t < count; ++t) {
      dd[t] = factor_[t] == T(0) ? T(0) : -dd[t];
    }
  }

  const T* dn() const { return dn_.data(); }
  T dd[kChunk];

 private:
  const SumsProblem<T>& p_;
  std::vector<T> dn_, buffer_;
  T factor_[kChunk];
};

/// Tasks and their share of threads: each group owns a sink, so that sums over
/// all tokens are added up in a fixed order.
template <typename Sink, typename MakeSink, typename Work>
std::vector<Sink> run_groups(int64_t tasks, const MakeSink& make_sink,
                             const Work& make_work) {
  const int64_t groups =
      std::max<int64_t>(1, std::min<int64_t>(tasks, at::get_num_threads()));
  std::vector<Sink> sinks;
  for (int64_t g = 0; g < groups; ++g) sinks.push_back(make_sink());
  at::parallel_for(0, groups, 1, [&](int64_t begin, int64_t end) {
    for (int64_t g = begin; g < end; ++g) {
      auto work = make_work(sinks[g]);
      for (int64_t i = g * tasks / groups; i < (g + 1) * tasks / groups; ++i) {
        work(i);
      }
    }
  });
  return sinks;
}

/// dphi of a tile of keys to the weights, the values and the features.
template <typename T, typename Features>
void finish_keys(const SumsProblem<T>& p, const Sequence& one, int64_t head,
                 int64_t first, int64_t count, KeyTiles<T, Features>& keys,
                 const Features& key, std::vector<T>& dphi, T* grad_weight,
                 typename Features::Sink& sink) {
  const auto& k = tile_kernels<T>();
  if (keys.weight != nullptr) {
    if (grad_weight != nullptr) {
      k.row_dots(count, p.features, keys.phi.data, keys.phi.stride, dphi.data(),
                 p.features,
                 grad_weight + (one.batch * p.heads + head) * p.key_length +
                     one.key_begin + first);
    }
    k.scale_rows(count, p.features, dphi.data(), p.features, keys.weight);
  }
  key.backward(one.batch, head, one.key_begin + first, count, keys.scratch(),
               dphi.data(), p.features, sink);
}

template <typename T, typename Features, typename MakeSink>
std::vector<typename Features::Sink> backward_all(
    const SumsProblem<T>& p, const SumsUpstream<T>& up, const Features& query,
    const Features& key, const Rows<T>& grad_value, T* grad_weight, T* grad_sum,
    const MakeSink& make_sink) {
  using Sink = typename Features::Sink;
  const int64_t size = p.state_size();
  // Queries: their gradients, and parts of dS = sum phi(q) [dn, dd]^T.
  const auto query_spans = cut_into_spans(
      p, p.segment, [](const Sequence& one) { return one.query_length; });
  std::vector<T> parts(query_spans.size() * size);
  auto sinks = run_groups<Sink>(
      static_cast<int64_t>(query_spans.size()), make_sink, [&](Sink& sink) {
        return [&, scratch = typename Features::Scratch(query, kChunk),
                rows = RowGradients<T>(p),
                sum = SumState<T>(p.features, p.width),
                d_sum = SumState<T>(p.features, p.width),
                sum_t = std::vector<T>(p.features * p.width),
                dphi = std::vector<T>(kChunk * p.features)](int64_t i) mutable {
          const auto& k = tile_kernels<T>();
          const Span& span = query_spans[i];
          const Sequence& one = p.sequences[span.sequence];
          const int64_t live = p.first_live_key(one, span.head);
          sum.read(up.state + (span.sequence * p.heads + span.head) * size);
          k.transpose(p.features, p.width, sum.s.data(), p.width, sum_t.data(),
                      p.features);
          d_sum.clear();
          for (int64_t t = span.begin; t < span.end; t += kChunk) {
            const int64_t count = std::min(kChunk, span.end - t);
            const int64_t row = one.query_begin + t;
            const Tile<T> phi =
                query.forward(one.batch, span.head, row, count, scratch);
            rows.load(up, one, span.head, t, count, live);
            k.gemm(count, p.features, p.width, rows.dn(), p.width, 1,
                   sum_t.data(), p.features, dphi.data(), p.features, false);
            T products[kChunk];
            k.row_dots(count, p.features, phi.data, phi.stride, dphi.data(),
                       p.features, products);
            rows.set_dd(count, products);
            k.add_outer(count, p.features, rows.dd, sum.z.data(), dphi.data(),
                        p.features);
            k.gemm(p.features, p.width, count, phi.data, 1, phi.stride,
                   rows.dn(), p.width, d_sum.s.data(), p.width, true);
            k.add_rows(count, p.features, phi.data, phi.stride, rows.dd,
                       d_sum.z.data());
            query.backward(one.batch, span.head, row, count, scratch,
                           dphi.data(), p.features, sink);
          }
          d_sum.write(parts.data() + i * size);
        };
      });
  std::fill_n(grad_sum, p.pairs() * size, T(0));
  if (up.grad_state != nullptr) {
    std::copy_n(up.grad_state, p.pairs() * size, grad_sum);
  }
  for (size_t i = 0; i < query_spans.size(); ++i) {
    const Span& span = query_spans[i];
    tile_kernels<T>().add(
        size, parts.data() + i * size,
        grad_sum + (span.sequence * p.heads + span.head) * size);
  }
  parts = {};
  // Keys and values.
  const auto key_spans = cut_into_spans(
      p, p.segment, [](const Sequence& one) { return one.key_length; });
  auto key_sinks = run_groups<Sink>(
      static_cast<int64_t>(key_spans.size()), make_sink, [&](Sink& sink) {
        return [&, keys = KeyTiles<T, Features>(p, key),
                d_sum = SumState<T>(p.features, p.width),
                d_sum_t = std::vector<T>(p.features * p.width),
                dv = std::vector<T>(kChunk * p.width),
                dphi = std::vector<T>(kChunk * p.features)](int64_t i) mutable {
          const auto& k = tile_kernels<T>();
          const Span& span = key_spans[i];
          const Sequence& one = p.sequences[span.sequence];
          d_sum.read(grad_sum + (span.sequence * p.heads + span.head) * size);
          k.transpose(p.features, p.width, d_sum.s.data(), p.width,
                      d_sum_t.data(), p.features);
          for (int64_t t = span.begin; t < span.end; t += kChunk) {
            const int64_t count = std::min(kChunk, span.end - t);
            keys.load(one, span.head, t, count);
            for (int64_t r = 0; r < count; ++r) {
              std::copy_n(d_sum.z.data(), p.features,
                          dphi.data() + r * p.features);
            }
            k.gemm(count, p.features, p.width, keys.v.data, keys.v.stride, 1,
                   d_sum_t.data(), p.features, dphi.data(), p.features, true);
            const int64_t row = one.key_begin + t;
            T* place = grad_value.in_place(one.batch, span.head, row);
            k.gemm(count, p.width, p.features, keys.weighted.data,
                   keys.weighted.stride, 1, d_sum.s.data(), p.width,
                   place != nullptr ? place : dv.data(),
                   place != nullptr ? grad_value.row_stride() : p.width, false);
            if (place == nullptr) {
              grad_value.write(one.batch, span.head, row, count, dv.data(),
                               p.width);
            }
            finish_keys(p, one, span.head, t, count, keys, key, dphi,
                        grad_weight, sink);
          }
        };
      });
  for (auto& sink : key_sinks) sinks.push_back(std::move(sink));
  return sinks;
}

}  // namespace luna::cpu

#include "ops/cpu/linear_sums_backward_causal.h"

namespace luna::cpu {

/// `make_sink()` gives an empty sink; all sinks come back in a fixed order.
template <typename T, typename Features, typename MakeSink>
std::pair<SumsGradients, std::vector<typename Features::Sink>> backward_sums(
    const ops::LinearSums& sums, const ops::LinearSumsResult& saved,
    const at::Tensor& grad_output, const at::Tensor& grad_state,
    const Features& query, const Features& key, const MakeSink& make_sink) {
  const SumsProblem<T> p(sums, query.width());
  const auto options =
      sums.query.options().dtype(ops::compute_dtype(sums.query));
  SumsGradients grads;
  grads.value = on_huge_pages(ops::empty_heads(sums.value));
  const bool weighted = sums.key_weight.has_value() &&
                        sums.key_weight->scalar_type() != at::kBool;
  at::Tensor grad_weight;
  if (weighted) {
    grad_weight = at::zeros({sums.key.size(0), p.heads, p.key_length}, options);
  }
  at::Tensor grad_sum = at::empty({static_cast<int64_t>(p.sequences.size()),
                                   p.heads, p.features, p.width + 1},
                                  options);
  const at::Tensor upstream =
      grad_output.size(3) > 1 && grad_output.stride(3) != 1
          ? grad_output.contiguous()
          : grad_output;
  const at::Tensor upstream_state =
      grad_state.defined() ? grad_state.contiguous() : at::Tensor();
  SumsUpstream<T> up;
  up.grad_output = Rows<T>(upstream);
  up.output = Rows<T>(saved.output);
  up.denominator = saved.denominator.template const_data_ptr<T>();
  if (upstream_state.defined()) {
    up.grad_state = upstream_state.template const_data_ptr<T>();
  }
  const at::Tensor final_state = saved.state.contiguous();
  up.state = final_state.template const_data_ptr<T>();
  up.segment_states = saved.segment_states.template const_data_ptr<T>();
  const auto run = p.causal ? backward_causal<T, Features, MakeSink>
                            : backward_all<T, Features, MakeSink>;
  auto sinks =
      run(p, up, query, key, Rows<T>(grads.value),
          weighted ? grad_weight.template mutable_data_ptr<T>() : nullptr,
          grad_sum.template mutable_data_ptr<T>(), make_sink);
  if (weighted) {
    if (sums.key_weight->dim() == 2) grad_weight = grad_weight.sum(1);
    grads.key_weight = grad_weight.to(sums.key_weight->scalar_type());
  }
  if (sums.state.has_value()) grads.state = grad_sum;
  return {std::move(grads), std::move(sinks)};
}

}  // namespace luna::cpu
