#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/contiguous.h>

#include <cstdint>

namespace luna::cuda {

/// Contiguous, from a multiple of 16 bytes on; x itself where it is so.
inline at::Tensor aligned(const at::Tensor& x) {
  const at::Tensor own = x.contiguous();
  const auto address = reinterpret_cast<uintptr_t>(own.const_data_ptr());
  return address % 16 == 0 ? own : own.clone();
}

}  // namespace luna::cuda
