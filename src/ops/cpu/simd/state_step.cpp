#include "ops/cpu/simd/state_step.h"

#include "ops/cpu/simd/isa.h"
#include "ops/cpu/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/simd/state_step.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h comes first: highway.h is then read once for each target.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace luna::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// NV vectors of columns, all rows: values and sums stay in registers.
template <int NV, typename T>
HWY_INLINE void columns(int64_t features, int64_t stride, const T* query,
                        const T* key, T weight, const T* value, T* state,
                        T* row) {
  const hn::ScalableTag<T> d;
  using V = hn::Vec<decltype(d)>;
  constexpr int64_t kLanes = hn::MaxLanes(d);
  V v[NV], sum[NV];
#pragma GCC unroll 4
  for (int j = 0; j < NV; ++j) {
    v[j] = hn::Mul(hn::Set(d, weight), hn::LoadU(d, value + j * kLanes));
    sum[j] = hn::Zero(d);
  }
  for (int64_t f = 0; f < features; ++f) {
    const V q = hn::Set(d, query[f]), k = hn::Set(d, key[f]);
    T* at = state + f * stride;
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) {
      const V s = hn::MulAdd(k, v[j], hn::LoadU(d, at + j * kLanes));
      hn::StoreU(s, d, at + j * kLanes);
      sum[j] = hn::MulAdd(q, s, sum[j]);
    }
  }
#pragma GCC unroll 4
  for (int j = 0; j < NV; ++j) hn::StoreU(sum[j], d, row + j * kLanes);
}

template <typename T>
void step(int64_t features, int64_t width, const T* query, const T* key,
          T weight, const T* value, T* state, T* row) {
  constexpr int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  const int64_t stride = width + 1;
  int64_t j = 0;
  for (; j + 4 * kLanes <= width; j += 4 * kLanes) {
    columns<4>(features, stride, query, key, weight, value + j, state + j,
               row + j);
  }
  for (; j + kLanes <= width; j += kLanes) {
    columns<1>(features, stride, query, key, weight, value + j, state + j,
               row + j);
  }
  for (; j <= width; ++j) {
    const T v = weight * (j < width ? value[j] : T(1));
    T sum = 0;
    for (int64_t f = 0; f < features; ++f) {
      T& s = state[f * stride + j];
      s += key[f] * v;
      sum += query[f] * s;
    }
    row[j] = sum;
  }
}

template <typename T>
const StateStepKernels<T>* table() {
  static constexpr StateStepKernels<T> kKernels = {step<T>};
  return &kKernels;
}

const StateStepKernels<float>* float_state_step() { return table<float>(); }
const StateStepKernels<double>* double_state_step() { return table<double>(); }

}  // namespace luna::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace luna::cpu {
HWY_EXPORT(float_state_step);
HWY_EXPORT(double_state_step);

template <>
const StateStepKernels<float>& state_step_kernels<float>() {
  static const auto* kernels = [] {
    apply_isa_override();
    return HWY_DYNAMIC_DISPATCH(float_state_step)();
  }();
  return *kernels;
}

template <>
const StateStepKernels<double>& state_step_kernels<double>() {
  static const auto* kernels = [] {
    apply_isa_override();
    return HWY_DYNAMIC_DISPATCH(double_state_step)();
  }();
  return *kernels;
}

}  // namespace luna::cpu
#endif
