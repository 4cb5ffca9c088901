#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <optional>
#include <vector>

#include "ops/cpu/features.h"
#include "ops/cpu/simd/state_step.h"

namespace luna::cpu {

/// One token for every (batch, head): state += w phi(k) [v, 1]^T, then
/// output = phi(q) S / guard(phi(q) z). Features over tensors [B,H,1,.];
/// value, output [B,H,dv]; state [B,H,F,dv+1] contiguous.
template <typename T, typename Features>
void advance_states(const Features& query, const Features& key,
                    const at::Tensor& value, at::Tensor& state,
                    const std::optional<at::Tensor>& key_weight, bool normalize,
                    double eps, const at::Tensor& output) {
  const int64_t batch = value.size(0), heads = value.size(1),
                width = value.size(2), features = query.width();
  const Rows<T> values(value.unsqueeze(2)), outputs(output.unsqueeze(2));
  T* states = state.mutable_data_ptr<T>();
  at::Tensor weight;
  if (key_weight.has_value()) {
    weight = key_weight->to(state.scalar_type());
    if (weight.dim() == 1) weight = weight.unsqueeze(1);
    weight = weight.expand({batch, heads}).contiguous();
  }
  const T* weights = weight.defined() ? weight.const_data_ptr<T>() : nullptr;
  const auto& kernels = state_step_kernels<T>();
  at::parallel_for(0, batch * heads, 4, [&](int64_t begin, int64_t end) {
    typename Features::Scratch query_scratch(query, 1), key_scratch(key, 1);
    std::vector<T> v(width), row(width + 1);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t b = i / heads, h = i % heads;
      const Tile<T> q = query.forward(b, h, 0, 1, query_scratch);
      const Tile<T> k = key.forward(b, h, 0, 1, key_scratch);
      const Tile<T> x = values.read(b, h, 0, 1, v.data());
      kernels.step(features, width, q.data, k.data,
                   weights == nullptr ? T(1) : weights[i], x.data,
                   states + i * features * (width + 1), row.data());
      if (normalize) {
        const T den = row[width], guard = static_cast<T>(eps);
        const T inverse =
            T(1) / (den < T(0) ? std::min(den, -guard) : std::max(den, guard));
        for (int64_t j = 0; j < width; ++j) row[j] *= inverse;
      }
      outputs.write(b, h, 0, 1, row.data(), width);
    }
  });
}

}  // namespace luna::cpu
