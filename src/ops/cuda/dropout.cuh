#pragma once

#include "ops/cuda/softmax.h"

namespace luna::cuda {

/// The factor of one weight: 0, or 1 / (1 - p). See ops/dropout.h.
template <typename T>
struct Keep {
  __device__ Keep(const SoftmaxDropout& d, int64_t sequence, int64_t head)
      : on(d.seed != nullptr), threshold(d.threshold), scale(d.scale) {
    if (on) {
      key = ops::dropout_head_key(d.seed[0], d.seed[1], d.map, sequence, head);
    }
  }
  __device__ T operator()(int64_t token, int64_t slot) const {
    return on ? at(token_key(token), static_cast<uint32_t>(slot)) : T(1);
  }
  __device__ uint64_t token_key(int64_t token) const {
    return ops::dropout_token_key(key, token);
  }
  /// The same by a token's key.
  __device__ T at(uint64_t token_key, uint32_t slot) const {
    return ops::dropout_bits(token_key, slot) >= threshold ? scale : T(0);
  }
  bool on;
  uint32_t threshold;
  T scale;
  uint64_t key = 0;
};

}  // namespace luna::cuda
