// local_sum on the CPU. Tokens that have the same neighbours, all but those
// near the ends of rows, go to the kernels of simd/local_sum.h together. Runs
// of about kRun tokens are the threads' pieces and the parts of the weight's
// gradient, whatever the number of threads.

#include "ops/local_sum.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "ops/checks.h"
#include "ops/cpu/simd/local_sum.h"

namespace luna::cpu {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

constexpr int64_t kRun = 256;

/// Tokens that follow each other in one row.
struct Stretch {
  int64_t first, count;  ///< of x's tokens
  int64_t left, right;   ///< tokens of its row before and behind it
  int64_t above, below;  ///< rows of its picture
};

/// All tokens, long rows in several stretches.
std::vector<Stretch> stretches_of(const Tensor& x, int64_t columns,
                                  const OptionalTensor& starts) {
  std::vector<Stretch> stretches;
  const auto add_row = [&](int64_t first, int64_t length, int64_t above,
                           int64_t below) {
    for (int64_t at = 0; at < length; at += kRun) {
      const int64_t count = std::min(kRun, length - at);
      stretches.push_back(
          {first + at, count, at, length - at - count, above, below});
    }
  };
  const int64_t n = x.size(1);
  if (starts) {
    ops::check_cu_seqlens_values("local_sum", "starts", *starts, n);
    const Tensor edges = starts->to(at::kLong).contiguous();
    const int64_t* edge = edges.const_data_ptr<int64_t>();
    for (int64_t i = 0; i + 1 < edges.numel(); ++i) {
      add_row(edge[i], edge[i + 1] - edge[i], 0, 0);
    }
    return stretches;
  }
  const int64_t row = columns > 0 ? columns : n, rows = n / row;
  for (int64_t i = 0; i < x.size(0) * rows; ++i) {
    add_row(i * row, row, i % rows, rows - 1 - i % rows);
  }
  return stretches;
}

/// Where runs of whole stretches begin among them, and where the last ends.
std::vector<int64_t> runs_of(const std::vector<Stretch>& stretches) {
  std::vector<int64_t> runs{0};
  int64_t tokens = 0;
  for (size_t i = 0; i < stretches.size(); ++i) {
    tokens += stretches[i].count;
    if (tokens < kRun && i + 1 < stretches.size()) continue;
    runs.push_back(static_cast<int64_t>(i) + 1);
    tokens = 0;
  }
  return runs;
}

/// Which taps have a neighbour, and how many tokens behind it stands.
struct Neighbours {
  std::vector<int64_t> taps{}, offsets{};
};

/// Calls body(first token, tokens, their neighbours) for all of a stretch.
template <typename Body>
void for_each_span(const Stretch& s, const Tensor& weight, int64_t columns,
                   const Body& body) {
  const int64_t rows = weight.size(1), taps = weight.size(2), half = taps / 2;
  Neighbours neighbours;
  for (int64_t at = 0, count = 0; at < s.count; at += count) {
    const int64_t left = s.left + at, right = s.right + s.count - 1 - at;
    const int64_t from = std::max<int64_t>(0, half - left);
    const int64_t to = std::min(taps - 1, half + right);
    // Behind a token that has all of them come others, but for the row's last
    // ones.
    const bool all = from == 0 && to == taps - 1;
    count = all ? std::min(s.count - at, right - half + 1) : 1;
    neighbours.taps.clear();
    neighbours.offsets.clear();
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t down = i - rows / 2;
      if (-down > s.above || down > s.below) continue;
      for (int64_t j = from; j <= to; ++j) {
        neighbours.taps.push_back(i * taps + j);
        neighbours.offsets.push_back(down * columns + j - half);
      }
    }
    body(s.first + at, count, neighbours);
  }
}

/// [I J,D] of [D,I,J].
Tensor by_tap(const Tensor& weight) {
  return weight.flatten(1).t().contiguous();
}

template <typename T>
Tensor forward_of(const Tensor& x_, const Tensor& weight, int64_t columns,
                  const std::vector<Stretch>& stretches) {
  const int64_t width = x_.size(2);
  const Tensor x = x_.to(weight.scalar_type()).contiguous();
  const Tensor taps = by_tap(weight), out = at::empty_like(x);
  const T* from = x.const_data_ptr<T>();
  const T* factors = taps.const_data_ptr<T>();
  T* to = out.mutable_data_ptr<T>();
  const LocalSumKernels<T>& kernels = local_sum_kernels<T>();
  const auto runs = runs_of(stretches);
  at::parallel_for(0, static_cast<int64_t>(runs.size()) - 1, 1,
                   [&](int64_t begin, int64_t end) {
                     for (int64_t i = runs[begin]; i < runs[end]; ++i) {
                       for_each_span(
                           stretches[i], weight, columns,
                           [&](int64_t first, int64_t count, const auto& near) {
                             kernels.sum(count, width, std::ssize(near.taps),
                                         near.taps.data(), near.offsets.data(),
                                         factors, from + first * width,
                                         to + first * width);
                           });
                     }
                   });
  return out.to(x_.scalar_type());
}

template <typename T>
Tensor weight_gradient_of(const Tensor& grad_, const Tensor& x_,
                          const Tensor& weight, int64_t columns,
                          const std::vector<Stretch>& stretches) {
  const int64_t width = x_.size(2), taps = weight.size(1) * weight.size(2);
  const Tensor x = x_.to(weight.scalar_type()).contiguous();
  const Tensor grad = grad_.to(weight.scalar_type()).contiguous();
  const auto runs = runs_of(stretches);
  const auto parts = static_cast<int64_t>(runs.size()) - 1;
  const Tensor sums = at::zeros({parts, taps, width}, weight.options());
  const T* from = x.const_data_ptr<T>();
  const T* up = grad.const_data_ptr<T>();
  T* to = sums.mutable_data_ptr<T>();
  const LocalSumKernels<T>& kernels = local_sum_kernels<T>();
  at::parallel_for(0, parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      for (int64_t i = runs[part]; i < runs[part + 1]; ++i) {
        for_each_span(stretches[i], weight, columns,
                      [&](int64_t first, int64_t count, const auto& near) {
                        kernels.add_products(
                            count, width, std::ssize(near.taps),
                            near.taps.data(), near.offsets.data(),
                            up + first * width, from + first * width,
                            to + part * taps * width);
                      });
      }
    }
  });
  return sums.sum(0).t().reshape(weight.sizes());
}

Tensor forward(const Tensor& x, const Tensor& weight, int64_t columns,
               const OptionalTensor& starts) {
  ops::check_local_sum(x, weight, columns, starts);
  if (x.numel() == 0) return at::empty_like(x);
  const auto stretches = stretches_of(x, columns, starts);
  return weight.scalar_type() == at::kDouble
             ? forward_of<double>(x, weight, columns, stretches)
             : forward_of<float>(x, weight, columns, stretches);
}

Tensor weight_backward(const Tensor& grad, const Tensor& x,
                       const Tensor& weight, int64_t columns,
                       const OptionalTensor& starts) {
  ops::check_local_sum(x, weight, columns, starts);
  if (x.numel() == 0) return at::zeros_like(weight);
  const auto stretches = stretches_of(x, columns, starts);
  return weight.scalar_type() == at::kDouble
             ? weight_gradient_of<double>(grad, x, weight, columns, stretches)
             : weight_gradient_of<float>(grad, x, weight, columns, stretches);
}

TORCH_LIBRARY_IMPL(luna, CPU, m) {
  m.impl("_local_sum", forward);
  m.impl("_local_sum_weight_backward", weight_backward);
}

}  // namespace
}  // namespace luna::cpu
