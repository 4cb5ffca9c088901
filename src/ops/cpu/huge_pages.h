#pragma once

#include <ATen/core/Tensor.h>
#include <sys/mman.h>

#include <cstdint>

namespace luna::cpu {

/// Asks for huge pages under a large tensor that has not been written yet.
/// Faulting in 4 KiB pages took a quarter of an op's time; a kernel that does
/// not grant the wish loses nothing.
inline const at::Tensor& on_huge_pages(const at::Tensor& fresh) {
#ifdef MADV_HUGEPAGE
  constexpr uintptr_t kHuge = uintptr_t(2) << 20;
  const auto begin = reinterpret_cast<uintptr_t>(fresh.data_ptr());
  const uintptr_t first = (begin + kHuge - 1) / kHuge * kHuge;
  const uintptr_t last = (begin + fresh.nbytes()) / kHuge * kHuge;
  if (first < last) {
    madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
  }
#endif
  return fresh;
}

}  // namespace luna::cpu
