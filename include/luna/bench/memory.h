#pragma once

#include <cstdint>

namespace luna::bench {

/// Counts the bytes of all CPU tensors of this process, from the first
/// MemoryMeter on (tensors made earlier are not seen).
///
/// It stands in LibTorch's place for an allocator, so it sees every tensor
/// and no other memory: a kernel's scratch on the C++ heap is not counted
/// (ResidentMeter sees that).
class MemoryMeter {
 public:
  MemoryMeter();  ///< peak() counts from here

  /// The most bytes that were in use at once since construction, above what
  /// was in use then.
  std::int64_t peak() const;

 private:
  std::int64_t start_;
};

/// The operating system's view, for the same purpose: growth of the resident
/// set since construction, tensors and scratch alike; -1 where the system
/// does not tell. Coarse: pages, and what the heap holds back.
class ResidentMeter {
 public:
  ResidentMeter();

  std::int64_t peak() const;

 private:
  std::int64_t start_;
};

/// The largest resident set of this process so far, in bytes; -1 where the
/// system does not tell.
std::int64_t peak_resident_bytes();

}  // namespace luna::bench
