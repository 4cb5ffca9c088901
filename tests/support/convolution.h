#pragma once

#include <ATen/ATen.h>

#include "ops/local_sum.h"
#include "support/check.h"
#include "support/random.h"

#include <cstdint>
#include <vector>

namespace luna::testing {

/// torch's depthwise convolution: x [B,n,D] as pictures of so many columns (0:
/// of one row), weight [D,I,J]. Sums in float32 or float64, rounded to x's
/// dtype.
inline at::Tensor convolved(const at::Tensor& x, const at::Tensor& weight,
                            int64_t columns) {
  const auto wide = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const std::vector<int64_t> padding{weight.size(1) / 2, weight.size(2) / 2};
  const auto pictures = x.to(wide).transpose(1, 2).reshape(
      {x.size(0), x.size(2), -1, columns > 0 ? columns : x.size(1)});
  return at::conv2d(pictures, weight.to(wide).unsqueeze(1), {}, 1, padding, 1,
                    x.size(2))
      .flatten(2)
      .transpose(1, 2)
      .to(x.scalar_type());
}

/// x of those sizes and weight [D, taps], against torch's convolution.
inline Problem local_sum_problem(at::IntArrayRef sizes, at::IntArrayRef taps,
                                 int64_t columns = 0) {
  Random random(71);
  return {
      .arguments = {{"x", random.normal(sizes)},
                    {"weight", random.normal({sizes[2], taps[0], taps[1]})}},
      .op = [columns](const Arguments& a) -> Tensors {
        return {ops::local_sum(a.at("x"), a.at("weight"), columns)};
      },
      .reference = [columns](const Arguments& a) -> Tensors {
        return {convolved(a.at("x"), a.at("weight"), columns)};
      }};
}

}  // namespace luna::testing
