#pragma once

#include <ATen/core/PhiloxRNGEngine.h>

#include <cstdint>

namespace luna::data {

/// Random numbers that are a pure function of (seed, stream): one stream for
/// each sample, so that it does not matter which thread draws it. The numbers
/// are the same on every platform, which std's distributions do not promise.
class Random {
 public:
  Random(uint64_t seed, uint64_t stream) : engine_(seed, stream) {}

  uint32_t bits() { return engine_(); }

  /// Uniform over 0 ... count - 1, without bias (Lemire's method).
  uint32_t below(uint32_t count) {
    uint64_t product = uint64_t{bits()} * count;
    if (static_cast<uint32_t>(product) < count) {
      const uint32_t unfair = -count % count;
      while (static_cast<uint32_t>(product) < unfair) {
        product = uint64_t{bits()} * count;
      }
    }
    return static_cast<uint32_t>(product >> 32);
  }

  /// Uniform over least ... greatest.
  int64_t between(int64_t least, int64_t greatest) {
    return least + below(static_cast<uint32_t>(greatest - least + 1));
  }

  /// Uniform over [0,1), on a grid of 2^-32.
  double uniform() { return bits() * 0x1p-32; }

 private:
  at::philox_engine engine_;
};

}  // namespace luna::data
