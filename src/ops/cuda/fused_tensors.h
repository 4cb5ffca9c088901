#pragma once

#include "ops/cuda/fused.h"
#include "ops/cuda/tensors.h"

// From tensors to what the fused kernels' copy engine reads.

namespace luna::cuda {

/// x [batch, heads, length, width], or a copy whose rows the engine can read.
inline at::Tensor readable(const at::Tensor& x) {
  bool good = reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0 &&
              x.stride(3) == 1;
  for (int i = 0; i < 3; ++i) {
    good =
        good && (x.size(i) <= 1 || (x.stride(i) > 0 && x.stride(i) % 8 == 0));
  }
  return good ? x : x.clone(at::MemoryFormat::Contiguous);
}

inline CUtensorMap map_of(const at::Tensor& x) {
  return fused_rows(rows_of(x), x.size(0), x.size(1), x.size(2), x.size(3));
}

}  // namespace luna::cuda
