#pragma once

#include <cstdint>

// Dropout as a pure function: whether the weight between one token and one
// slot of the memory is kept depends on the seed and on where it stands, and
// on nothing else (tiles, threads, instruction set, device). So backward,
// checkpointing and graphs see the mask that forward saw.
//
//   head key  = absorb(seed[0], seed[1], map, sequence, head)
//   token key = absorb(head key, token)             64 bits, once per token
//   word      = mix32(token key, slot without bit 3)   32 bits, for two slots
//   bits      = the word's low half where bit 3 of the slot is 0, else the high
//   keep      = bits >= p * 2^16; what is kept is multiplied by 1 / (1 - p)
//
// Two slots that are eight apart share a word, since a thread of the GPU's
// kernels has both, whichever way round its tile is; making words is most of
// what dropout costs there. So p is taken to the nearest 65,536th.
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

/// The word of `slot` and `slot` + 8; bit 3 of `slot` is 0.
constexpr uint32_t dropout_word(uint64_t token_key, uint32_t slot) {
  uint32_t x = slot * kDropoutSlotStep + static_cast<uint32_t>(token_key);
  x = (x ^ (x >> 16)) * kDropoutMultiplier1;
  x = (x ^ (x >> 15)) + static_cast<uint32_t>(token_key >> 32);
  x *= kDropoutMultiplier2;
  return x ^ (x >> 16);
}

/// A slot's half of its word, in the upper bits: only they are compared.
constexpr uint32_t dropout_half(uint32_t word, bool high) {
  return high ? word : word << 16;
}

constexpr uint32_t dropout_bits(uint64_t token_key, uint32_t slot) {
  return dropout_half(dropout_word(token_key, slot & ~8u), (slot & 8) != 0);
}

/// What bits are compared with, for p in [0, 1).
constexpr uint32_t dropout_threshold(double p) {
  const auto share = static_cast<uint32_t>(p * 65536.0 + 0.5);
  return (share < 65535u ? share : 65535u) << 16;
}

}  // namespace luna::ops
