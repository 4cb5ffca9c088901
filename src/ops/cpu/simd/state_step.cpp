#include "ops/cpu/simd/state_step.h"

#include <algorithm>
#include <bit>
#include <type_traits>

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

// Rows of the state by what a token does to them: those that its key changes,
// and those that only its query reads. A ReLU leaves about half of all
// features at 0, and a row that both leave alone costs nothing.
struct RowLists {
  static constexpr int64_t kBlock = 128;
  int32_t changed[kBlock], read[kBlock];
  int64_t changed_count = 0, read_count = 0;
};

// x != 0 without a branch, which half of the features would mispredict.
template <typename T>
HWY_INLINE int64_t is_nonzero(T x) {
  using Bits =
      std::conditional_t<std::is_same_v<T, double>, uint64_t, uint32_t>;
  return static_cast<Bits>(std::bit_cast<Bits>(x) << 1) != 0 ? 1 : 0;
}

template <typename T>
HWY_INLINE void list_rows(int64_t features, const T* query, const T* key,
                          RowLists& rows) {
  int64_t changed = 0, read = 0;
  for (int64_t f = 0; f < features; ++f) {
    rows.changed[changed] = rows.read[read] = static_cast<int32_t>(f);
    const int64_t changes = is_nonzero(key[f]);
    changed += changes;
    read += (1 - changes) & is_nonzero(query[f]);
  }
  rows.changed_count = changed;
  rows.read_count = read;
}

// NV vectors of columns, and with kOne the column after them too, whose value
// is 1: values and sums stay in registers. Adds to `row`.
template <int NV, bool kOne, typename T>
HWY_INLINE void columns(const RowLists& rows, int64_t stride, const T* query,
                        const T* key, T weight, const T* value, T* state,
                        T* row) {
  const hn::ScalableTag<T> d;
  using V = hn::Vec<decltype(d)>;
  constexpr int64_t kLanes = hn::MaxLanes(d);
  V v[NV], sum[NV];
  T one = 0;
#pragma GCC unroll 4
  for (int j = 0; j < NV; ++j) {
    v[j] = hn::Mul(hn::Set(d, weight), hn::LoadU(d, value + j * kLanes));
    sum[j] = hn::LoadU(d, row + j * kLanes);
  }
  for (int64_t i = 0; i < rows.changed_count; ++i) {
    const int64_t f = rows.changed[i];
    const V q = hn::Set(d, query[f]), k = hn::Set(d, key[f]);
    T* at = state + f * stride;
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) {
      const V s = hn::MulAdd(k, v[j], hn::LoadU(d, at + j * kLanes));
      hn::StoreU(s, d, at + j * kLanes);
      sum[j] = hn::MulAdd(q, s, sum[j]);
    }
    if constexpr (kOne) {
      T& s = at[NV * kLanes];
      s += key[f] * weight;
      one += query[f] * s;
    }
  }
  for (int64_t i = 0; i < rows.read_count; ++i) {
    const int64_t f = rows.read[i];
    const V q = hn::Set(d, query[f]);
    const T* at = state + f * stride;
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) {
      sum[j] = hn::MulAdd(q, hn::LoadU(d, at + j * kLanes), sum[j]);
    }
    if constexpr (kOne) one += query[f] * at[NV * kLanes];
  }
#pragma GCC unroll 4
  for (int j = 0; j < NV; ++j) hn::StoreU(sum[j], d, row + j * kLanes);
  if constexpr (kOne) row[NV * kLanes] += one;
}

template <typename T>
void step_block(int64_t features, int64_t width, const T* query, const T* key,
                T weight, const T* value, T* state, T* row) {
  constexpr int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  const int64_t stride = width + 1;
  RowLists rows;
  list_rows(features, query, key, rows);
  int64_t j = 0;
  for (; j + 4 * kLanes < width; j += 4 * kLanes) {
    columns<4, false>(rows, stride, query, key, weight, value + j, state + j,
                      row + j);
  }
  if (j + 4 * kLanes == width) {
    columns<4, true>(rows, stride, query, key, weight, value + j, state + j,
                     row + j);
    return;
  }
  for (; j + kLanes <= width; j += kLanes) {
    columns<1, false>(rows, stride, query, key, weight, value + j, state + j,
                      row + j);
  }
  for (; j <= width; ++j) {
    const T v = weight * (j < width ? value[j] : T(1));
    for (int64_t i = 0; i < rows.changed_count; ++i) {
      const int64_t f = rows.changed[i];
      T& s = state[f * stride + j];
      s += key[f] * v;
      row[j] += query[f] * s;
    }
    for (int64_t i = 0; i < rows.read_count; ++i) {
      const int64_t f = rows.read[i];
      row[j] += query[f] * state[f * stride + j];
    }
  }
}

template <typename T>
void step(int64_t features, int64_t width, const T* query, const T* key,
          T weight, const T* value, T* state, T* row) {
  for (int64_t j = 0; j <= width; ++j) row[j] = T(0);
  for (int64_t f = 0; f < features; f += RowLists::kBlock) {
    step_block(std::min(RowLists::kBlock, features - f), width, query + f,
               key + f, weight, value, state + f * (width + 1), row);
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
