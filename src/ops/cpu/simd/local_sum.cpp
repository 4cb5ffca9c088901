#include "ops/cpu/simd/local_sum.h"

#include "ops/cpu/simd/isa.h"
#include "ops/cpu/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/simd/local_sum.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h comes first: highway.h is then read once for each target.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace luna::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr int64_t kTokens = 8;   // that share a load of a weight
constexpr int64_t kColumns = 4;  // vectors of a token that stands alone
constexpr int64_t kTaps = 8;     // whose gradients are in registers at once

// C vectors of columns of N tokens: the sums stay in registers.
template <int N, int C, typename T>
HWY_INLINE void sum_block(int64_t width, int64_t count, const int64_t* tap,
                          const int64_t* offset, const T* weight, const T* x,
                          T* out) {
  const hn::ScalableTag<T> d;
  constexpr int64_t kLanes = hn::MaxLanes(d);
  hn::Vec<decltype(d)> sum[N * C];
#pragma GCC unroll 8
  for (int i = 0; i < N * C; ++i) sum[i] = hn::Zero(d);
  for (int64_t k = 0; k < count; ++k) {
    const T* from = x + offset[k] * width;
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      const auto w = hn::LoadU(d, weight + tap[k] * width + c * kLanes);
#pragma GCC unroll 8
      for (int i = 0; i < N; ++i) {
        const auto v = hn::LoadU(d, from + i * width + c * kLanes);
        sum[i * C + c] = hn::MulAdd(w, v, sum[i * C + c]);
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < N; ++i) {
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      hn::StoreU(sum[i * C + c], d, out + i * width + c * kLanes);
    }
  }
}

// All columns of N tokens.
template <int N, typename T>
HWY_INLINE void sum_tokens(int64_t width, int64_t count, const int64_t* tap,
                           const int64_t* offset, const T* weight, const T* x,
                           T* out) {
  constexpr int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  int64_t c = 0;
  if constexpr (N == 1) {
    for (; c + kColumns * kLanes <= width; c += kColumns * kLanes) {
      sum_block<1, kColumns>(width, count, tap, offset, weight + c, x + c,
                             out + c);
    }
  }
  for (; c + kLanes <= width; c += kLanes) {
    sum_block<N, 1>(width, count, tap, offset, weight + c, x + c, out + c);
  }
  for (; c < width; ++c) {
    for (int i = 0; i < N; ++i) {
      T total = 0;
      for (int64_t k = 0; k < count; ++k) {
        total += weight[tap[k] * width + c] * x[(i + offset[k]) * width + c];
      }
      out[i * width + c] = total;
    }
  }
}

template <typename T>
void sum(int64_t tokens, int64_t width, int64_t count, const int64_t* tap,
         const int64_t* offset, const T* weight, const T* x, T* out) {
  int64_t t = 0;
  for (; t + kTokens <= tokens; t += kTokens) {
    sum_tokens<kTokens>(width, count, tap, offset, weight, x + t * width,
                        out + t * width);
  }
  for (; t + kTokens / 2 <= tokens; t += kTokens / 2) {
    sum_tokens<kTokens / 2>(width, count, tap, offset, weight, x + t * width,
                            out + t * width);
  }
  for (; t < tokens; ++t) {
    sum_tokens<1>(width, count, tap, offset, weight, x + t * width,
                  out + t * width);
  }
}

// A vector of columns of N weights' gradients.
template <int N, typename T>
HWY_INLINE void add_taps(int64_t tokens, int64_t width, const int64_t* tap,
                         const int64_t* offset, const T* grad, const T* x,
                         T* weight_grad) {
  const hn::ScalableTag<T> d;
  hn::Vec<decltype(d)> total[N];
  const T* from[N];
#pragma GCC unroll 8
  for (int k = 0; k < N; ++k) {
    total[k] = hn::LoadU(d, weight_grad + tap[k] * width);
    from[k] = x + offset[k] * width;
  }
  for (int64_t t = 0; t < tokens; ++t) {
    const auto g = hn::LoadU(d, grad + t * width);
#pragma GCC unroll 8
    for (int k = 0; k < N; ++k) {
      total[k] = hn::MulAdd(g, hn::LoadU(d, from[k] + t * width), total[k]);
    }
  }
#pragma GCC unroll 8
  for (int k = 0; k < N; ++k) {
    hn::StoreU(total[k], d, weight_grad + tap[k] * width);
  }
}

// The same of n weights, from 1 to N.
template <int N, typename T>
HWY_INLINE void add_some_taps(int64_t n, int64_t tokens, int64_t width,
                              const int64_t* tap, const int64_t* offset,
                              const T* grad, const T* x, T* weight_grad) {
  if constexpr (N > 1) {
    if (n < N) {
      add_some_taps<N - 1>(n, tokens, width, tap, offset, grad, x, weight_grad);
      return;
    }
  }
  add_taps<N>(tokens, width, tap, offset, grad, x, weight_grad);
}

template <typename T>
void add_columns(int64_t tokens, int64_t width, int64_t count,
                 const int64_t* tap, const int64_t* offset, const T* grad,
                 const T* x, T* weight_grad) {
  // Groups of about the same size: one weight alone would wait for each sum.
  for (int64_t groups = (count + kTaps - 1) / kTaps; groups > 0; --groups) {
    const int64_t n = (count + groups - 1) / groups;
    add_some_taps<kTaps>(n, tokens, width, tap, offset, grad, x, weight_grad);
    tap += n;
    offset += n;
    count -= n;
  }
}

template <typename T>
void add_products(int64_t tokens, int64_t width, int64_t count,
                  const int64_t* tap, const int64_t* offset, const T* grad,
                  const T* x, T* weight_grad) {
  constexpr int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  int64_t c = 0;
  for (; c + kLanes <= width; c += kLanes) {
    add_columns(tokens, width, count, tap, offset, grad + c, x + c,
                weight_grad + c);
  }
  for (; c < width; ++c) {
    for (int64_t k = 0; k < count; ++k) {
      T& total = weight_grad[tap[k] * width + c];
      for (int64_t t = 0; t < tokens; ++t) {
        total += grad[t * width + c] * x[(t + offset[k]) * width + c];
      }
    }
  }
}

template <typename T>
const LocalSumKernels<T>* table() {
  static constexpr LocalSumKernels<T> kKernels = {sum<T>, add_products<T>};
  return &kKernels;
}

const LocalSumKernels<float>* float_local_sum() { return table<float>(); }
const LocalSumKernels<double>* double_local_sum() { return table<double>(); }

}  // namespace luna::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace luna::cpu {
HWY_EXPORT(float_local_sum);
HWY_EXPORT(double_local_sum);

template <>
const LocalSumKernels<float>& local_sum_kernels<float>() {
  static const auto* kernels = [] {
    apply_isa_override();
    return HWY_DYNAMIC_DISPATCH(float_local_sum)();
  }();
  return *kernels;
}

template <>
const LocalSumKernels<double>& local_sum_kernels<double>() {
  static const auto* kernels = [] {
    apply_isa_override();
    return HWY_DYNAMIC_DISPATCH(double_local_sum)();
  }();
  return *kernels;
}

}  // namespace luna::cpu
#endif
