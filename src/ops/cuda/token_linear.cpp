// Linear layers of a decoding step on the GPU.

#include "ops/cuda/token_linear.h"

#include <torch/library.h>

#include "ops/cuda/launch.h"
#include "ops/cuda/tensors.h"
#include "ops/token_linear.h"

namespace luna::cuda {
namespace {

using at::Tensor;

Tensor forward(const Tensor& x, const Tensor& weight, const Tensor& bias,
               bool relu) {
  const c10::cuda::CUDAGuard guard(x.device());
  if (!is_hopper()) return ops::plain_token_linear(x, weight, bias, relu);
  const Tensor out = at::empty({x.size(0), weight.size(0)}, x.options());
  token_linear({.x = x.const_data_ptr(),
                .weight = weight.const_data_ptr(),
                .bias = bias.const_data_ptr(),
                .out = out.mutable_data_ptr(),
                .rows = static_cast<int>(x.size(0)),
                .in = static_cast<int>(x.size(1)),
                .outs = static_cast<int>(weight.size(0)),
                .relu = relu},
               c10::cuda::getCurrentCUDAStream());
  return out;
}

TORCH_LIBRARY_IMPL(luna, CUDA, m) { m.impl("_token_linear", forward); }

}  // namespace
}  // namespace luna::cuda
