#pragma once

#include <cstdint>

// Dropout as a pure function: whether the weight between one token and one
// slot of the memory is kept depends on the seed and on where it stands, and
// on nothing else (tiles, threads, instruction set, device). So backward,
// checkpointing and graphs see the mask that forward saw.
//
//   head key  = absorb(seed[0], seed[1], map, sequence, head)
//   token key = absorb(head key, token)             64 bits, once per token
//   bits      = mix32(token key, slot)              32 bits, once per weight
//   keep      = bits >= p * 2^32; what is kept is multiplied by 1 / (1 - p)
//
// absorb is SplitMix64's finaliser, mix32 two rounds of multiply and
// xor-shift, keyed by one half of the token key each: integer operations that
// every vector unit and GPU has.

namespace luna::ops {

/// Maps that one seed may serve; each gets random bits of its own.
enum class DropoutMap : uint64_t {
  kPack = 1,
  kUnpack = 2,
  kCausalPack = 3,
  kCausalUnpack = 4,
  kResidual = 5,
  kEmbedding = 6,
  kActivation = 7,
};

constexpr uint64_t absorb(uint64_t key, uint64_t word) {
  uint64_t x = (key ^ word) + 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

/// `sequence` counts the batch, or the packed sequences.
constexpr uint64_t dropout_head_key(int64_t seed_low, int64_t seed_high,
                                    DropoutMap map, int64_t sequence,
                                    int64_t head) {
  uint64_t key = absorb(0, static_cast<uint64_t>(seed_low));
  key = absorb(key, static_cast<uint64_t>(seed_high));
  key = absorb(key, static_cast<uint64_t>(map));
  key = absorb(key, static_cast<uint64_t>(sequence));
  return absorb(key, static_cast<uint64_t>(head));
}

/// `token` counts within its sequence (a stream: from its very beginning).
constexpr uint64_t dropout_token_key(uint64_t head_key, int64_t token) {
  return absorb(head_key, static_cast<uint64_t>(token));
}

constexpr uint32_t kDropoutSlotStep = 0x9E3779B9u;
constexpr uint32_t kDropoutMultiplier1 = 0x7FEB352Du;
constexpr uint32_t kDropoutMultiplier2 = 0x846CA68Bu;

constexpr uint32_t dropout_bits(uint64_t token_key, uint32_t slot) {
  uint32_t x = slot * kDropoutSlotStep + static_cast<uint32_t>(token_key);
  x = (x ^ (x >> 16)) * kDropoutMultiplier1;
  x = (x ^ (x >> 15)) + static_cast<uint32_t>(token_key >> 32);
  x *= kDropoutMultiplier2;
  return x ^ (x >> 16);
}

/// For p in [0, 1).
constexpr uint32_t dropout_threshold(double p) {
  return static_cast<uint32_t>(p * 4294967296.0);
}

}  // namespace luna::ops
