#pragma once

#include <cstdint>

namespace luna::data {

/// Random bits that are a pure function of where they are used: no state that
/// a resumed run would have to restore. SplitMix64's finaliser over each of
/// the three numbers in turn.
inline uint64_t counted_bits(uint64_t seed, uint64_t stream, uint64_t counter) {
  const auto mix = [](uint64_t x) {
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
  };
  return mix(mix(mix(seed) ^ stream) ^ counter);
}

/// One of 0 ... n - 1, for n < 2^32, from 64 random bits.
inline uint64_t below(uint64_t n, uint64_t bits) {
  return ((bits >> 32) * n) >> 32;
}

}  // namespace luna::data
