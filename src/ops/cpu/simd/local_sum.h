#pragma once

#include <cstdint>

namespace luna::cpu {

/// Sums over neighbours of `tokens` tokens that follow each other and have the
/// same ones: neighbour k, of `count`, stands offset[k] tokens behind and has
/// row tap[k] of the weights. All rows are `width` numbers long.
template <typename T>
struct LocalSumKernels {
  /// out[t,c] = sum_k weight[tap[k],c] x[t + offset[k],c]
  void (*sum)(int64_t tokens, int64_t width, int64_t count, const int64_t* tap,
              const int64_t* offset, const T* weight, const T* x, T* out);
  /// weight_grad[tap[k],c] += sum_t grad[t,c] x[t + offset[k],c]
  void (*add_products)(int64_t tokens, int64_t width, int64_t count,
                       const int64_t* tap, const int64_t* offset, const T* grad,
                       const T* x, T* weight_grad);
};

template <typename T>
const LocalSumKernels<T>& local_sum_kernels();
template <>
const LocalSumKernels<float>& local_sum_kernels<float>();
template <>
const LocalSumKernels<double>& local_sum_kernels<double>();

}  // namespace luna::cpu
