#pragma once

#include <cstdint>

namespace luna::cpu {

template <typename T>
struct StateStepKernels {
  /// state [F, dv+1] += weight * key [F] (value, 1)^T, then
  /// row [dv+1] = query [F] . state, in one pass over the state.
  void (*step)(int64_t features, int64_t width, const T* query, const T* key,
               T weight, const T* value, T* state, T* row);
};

template <typename T>
const StateStepKernels<T>& state_step_kernels();
template <>
const StateStepKernels<float>& state_step_kernels<float>();
template <>
const StateStepKernels<double>& state_step_kernels<double>();

}  // namespace luna::cpu
