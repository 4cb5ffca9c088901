#pragma once

#include <cstdint>

namespace luna::data {

/// A seed for what is done at one place of a run, a pure function of that
/// place: no state that a resumed run would have to restore. SplitMix64's
/// finaliser over each of the three numbers in turn. It seeds torch's own
/// generators (weights, dropout); Random (random.h) draws the data. They stay
/// two: with Philox's words here instead, every run of a published seed would
/// start from other weights, and nothing would get simpler.
inline uint64_t counted_bits(uint64_t seed, uint64_t stream, uint64_t counter) {
  const auto mix = [](uint64_t x) {
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
  };
  return mix(mix(mix(seed) ^ stream) ^ counter);
}

}  // namespace luna::data
