// feature_map on the GPU.

#include <torch/library.h>

#include "ops/cuda/feature_rows.h"

namespace luna::cuda {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

// x [..., d] as [batch, heads, length, d], without a copy where strides allow.
Tensor as_heads(const Tensor& x, bool per_head) {
  if (x.dim() == 4) return x;
  if (x.dim() == 3) return x.unsqueeze(0);
  if (!per_head) return x.reshape({1, 1, -1, x.size(-1)});
  return x.reshape({-1, x.size(-3), x.size(-2), x.size(-1)});
}

Tensor forward(const Tensor& x, const Tensor& projection,
               const Tensor& projection_bias, const Tensor& hidden_weight,
               const Tensor& hidden_bias, const Tensor& output_weight,
               const Tensor& output_bias, bool nonneg,
               const OptionalTensor& table) {
  const ops::FeatureMapParameters p{projection,  projection_bias, hidden_weight,
                                    hidden_bias, output_weight,   output_bias};
  ops::check_feature_input("feature_map", x);
  ops::check_feature_parameters("feature_map", "x", x, -3, p, table);
  const c10::cuda::CUDAGuard guard(x.device());
  auto sizes = x.sizes().vec();
  sizes.back() = projection.size(-2) * output_weight.size(0);
  const Tensor output = at::empty(sizes, x.options());
  const bool per_head = projection.dim() == 3;
  const Tensor rows = as_heads(x, per_head), out = as_heads(output, per_head);
  const Tensor built = ops::table_or_built(x, p, table);
  dispatch_compute(x, [&]<typename T>() {
    Features<T>(p, built, nonneg).forward(rows, out);
  });
  return output;
}

std::vector<Tensor> backward(
    const Tensor& grad, const Tensor& x, const Tensor& projection,
    const Tensor& projection_bias, const Tensor& hidden_weight,
    const Tensor& hidden_bias, const Tensor& output_weight,
    const Tensor& output_bias, bool nonneg, const Tensor& table) {
  const ops::FeatureMapParameters p{projection,  projection_bias, hidden_weight,
                                    hidden_bias, output_weight,   output_bias};
  const c10::cuda::CUDAGuard guard(x.device());
  const Tensor grad_x = at::empty(x.sizes(), x.options());
  const bool per_head = projection.dim() == 3;
  const Tensor rows = as_heads(x, per_head),
               up = as_heads(grad.contiguous(), per_head),
               to = as_heads(grad_x, per_head);
  auto result = dispatch_compute(x, [&]<typename T>() {
    const Features<T> features(p, table, nonneg);
    const Tensor partials =
        features.empty_partials(1, rows.size(1), features.parts(rows));
    features.backward(rows, up, to, partials[0]);
    return features.gradients(partials, features.knots());
  });
  result.insert(result.begin(), grad_x);
  return result;
}

TORCH_LIBRARY_IMPL(luna, CUDA, m) {
  m.impl("feature_map", forward);
  m.impl("feature_map_backward", backward);
}

}  // namespace
}  // namespace luna::cuda
