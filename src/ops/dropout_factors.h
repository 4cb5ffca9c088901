#pragma once

#include <ATen/ops/ones.h>

#include <optional>

#include "ops/dropout.h"

namespace luna::ops {

/// 0, or 1 / (1 - p), for every entry of rows [...,D] that are counted from
/// the first: what kernels multiply with (dropout.h), as a float32 tensor.
inline at::Tensor dropout_factors(at::IntArrayRef sizes,
                                  const std::optional<at::Tensor>& seed,
                                  double p, DropoutMap map) {
  const at::Tensor factors = at::ones(sizes, at::kFloat);
  if (p == 0 || factors.numel() == 0) return factors;
  const int64_t* const words = seed->const_data_ptr<int64_t>();
  const uint64_t key = dropout_head_key(words[0], words[1], map, 0, 0);
  const uint32_t threshold = dropout_threshold(p);
  const float scale = static_cast<float>(1 / (1 - p));
  const int64_t width = sizes.back();
  float* factor = factors.mutable_data_ptr<float>();
  for (int64_t row = 0; row < factors.numel() / width; ++row) {
    const uint64_t row_key = dropout_token_key(key, row);
    for (int64_t c = 0; c < width; ++c) {
      const uint32_t bits = dropout_bits(row_key, static_cast<uint32_t>(c));
      *factor++ = bits >= threshold ? scale : 0.0f;
    }
  }
  return factors;
}

}  // namespace luna::ops
