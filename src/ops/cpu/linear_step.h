#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <optional>
#include <vector>

#include "ops/cpu/features.h"
#include "ops/cpu/simd/state_step.h"

namespace luna::cpu {

/// One token for every (batch, head): state += w phi(k) [v, 1]^T, then
/// output = phi(q) S / guard(phi(q) z). Features over token_rows: a tile of
/// heads at a time, or each apart where heads differ in their features; value,
/// output [B,H,dv]; state [B,H,F,dv+1] contiguous.
template <typename T, typename Features>
void advance_states(const Features& query, const Features& key,
                    const at::Tensor& value, at::Tensor& state,
                    const std::optional<at::Tensor>& key_weight, bool normalize,
                    double eps, bool per_head, const at::Tensor& output) {
  const int64_t batch = value.size(0), heads = value.size(1),
                width = value.size(2), features = query.width();
  const Rows<T> values = Rows<T>::token(value),
                outputs = Rows<T>::token(output);
  T* states = state.mutable_data_ptr<T>();
  at::Tensor weight;
  if (key_weight.has_value()) {
    weight = key_weight->to(state.scalar_type());
    if (weight.dim() == 1) weight = weight.unsqueeze(1);
    weight = weight.expand({batch, heads}).contiguous();
  }
  const T* weights = weight.defined() ? weight.const_data_ptr<T>() : nullptr;
  const auto& kernels = state_step_kernels<T>();
  constexpr int64_t kTile = 32;
  const int64_t tile = per_head ? 1 : std::min(kTile, batch * heads);
  at::parallel_for(0, batch * heads, 8, [&](int64_t begin, int64_t end) {
    typename Features::Scratch query_scratch(query, tile),
        key_scratch(key, tile);
    std::vector<T> v(width), row(width + 1);
    for (int64_t first = begin; first < end; first += tile) {
      const int64_t count = std::min(tile, end - first);
      const int64_t b0 = per_head ? first / heads : 0,
                    h0 = per_head ? first % heads : 0,
                    row0 = per_head ? 0 : first;
      const Tile<T> q = query.forward(b0, h0, row0, count, query_scratch);
      const Tile<T> k = key.forward(b0, h0, row0, count, key_scratch);
      for (int64_t t = 0; t < count; ++t) {
        const int64_t i = first + t, b = i / heads, h = i % heads;
        const Tile<T> x = values.read(b, h, 0, 1, v.data());
        kernels.step(features, width, q.data + t * q.stride,
                     k.data + t * k.stride,
                     weights == nullptr ? T(1) : weights[i], x.data,
                     states + i * features * (width + 1), row.data());
        if (normalize) {
          const T den = row[width], guard = static_cast<T>(eps);
          const T inverse = T(1) / (den < T(0) ? std::min(den, -guard)
                                               : std::max(den, guard));
          for (int64_t j = 0; j < width; ++j) row[j] *= inverse;
        }
        outputs.write(b, h, 0, 1, row.data(), width);
      }
    }
  });
}

/// x [B,H,d] with one stride from each head to the next, unless the heads are
/// read one by one: copied where it has not.
inline at::Tensor evenly_spaced(const at::Tensor& x, bool per_head) {
  const bool even = per_head || x.size(0) == 1 || x.size(1) == 1 ||
                    x.stride(0) == x.size(1) * x.stride(1);
  return even ? x : x.contiguous();
}

/// An evenly spaced token as advance_states reads it.
template <typename T>
Rows<T> token_rows(const at::Tensor& x, bool per_head) {
  return per_head ? Rows<T>::token(x) : Rows<T>::token_as_rows(x);
}

}  // namespace luna::cpu
