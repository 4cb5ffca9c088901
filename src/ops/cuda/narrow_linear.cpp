// Linear layers of narrow rows on the GPU.

#include "ops/cuda/narrow_linear.h"

#include <torch/library.h>

#include "ops/cuda/aligned.h"
#include "ops/cuda/tensors.h"

namespace luna::cuda {
namespace {

using at::Tensor;
using Holders = std::vector<Tensor>;

constexpr int64_t kWidth = NarrowLinear::kWidth;

Tensor held(const Tensor& x, Holders& holders) {
  return holders.emplace_back(aligned(x));
}

/// Where each 64 rows of the weights begin, or each 64 numbers of the biases.
int put_blocks(at::TensorList parts,
               const float* (&blocks)[NarrowLinear::kMostBlocks],
               Holders& holders) {
  int count = 0;
  for (const Tensor& part : parts) {
    const Tensor own = held(part, holders);
    const int64_t step = own.numel() / own.size(0) * kWidth;
    for (int64_t row = 0; row < own.size(0); row += kWidth) {
      TORCH_CHECK_VALUE(count < NarrowLinear::kMostBlocks,
                        "narrow_linear: expected at most ",
                        NarrowLinear::kMostBlocks * kWidth, " outputs");
      blocks[count++] = own.const_data_ptr<float>() + row / kWidth * step;
    }
  }
  return count;
}

NarrowLinear arguments(const Tensor& x, at::TensorList weights,
                       Holders& holders) {
  TORCH_CHECK_TYPE(x.scalar_type() == at::kBFloat16,
                   "narrow_linear: expected x of dtype bfloat16, got ",
                   x.scalar_type());
  for (const Tensor& weight : weights) {
    TORCH_CHECK_VALUE(weight.dim() == 2 && weight.size(1) == kWidth &&
                          x.size(-1) == kWidth && weight.size(0) > 0 &&
                          weight.size(0) % kWidth == 0,
                      "narrow_linear: expected x [...,", kWidth,
                      "] and weights [multiples of ", kWidth, ", ", kWidth,
                      "], got ", x.sizes(), " and ", weight.sizes());
  }
  NarrowLinear args;
  args.rows = x.numel() / kWidth;
  args.blocks = put_blocks(weights, args.weight, holders);
  args.x = held(x, holders).const_data_ptr();
  return args;
}

Tensor forward(const Tensor& x, at::TensorList weights, at::TensorList biases) {
  const c10::cuda::CUDAGuard guard(x.device());
  Holders holders;
  NarrowLinear args = arguments(x, weights, holders);
  put_blocks(biases, args.bias, holders);
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = args.blocks * kWidth;
  const Tensor out = at::empty(sizes, x.options());
  args.out = out.mutable_data_ptr();
  if (args.rows > 0) {
    narrow_linear(args, c10::cuda::getCurrentCUDAStream());
  }
  return out;
}

std::tuple<Tensor, Tensor> backward(const Tensor& grad, const Tensor& x,
                                    at::TensorList weights, bool x_needs_grad) {
  const c10::cuda::CUDAGuard guard(x.device());
  Holders holders;
  NarrowLinear args = arguments(x, weights, holders);
  const auto options = x.options().dtype(at::kFloat);
  const int64_t numbers = NarrowLinear::numbers(args.blocks);
  const Tensor grad_x =
      at::empty(x_needs_grad ? x.sizes() : at::IntArrayRef{0}, x.options());
  const Tensor partials = at::empty(
      {narrow_linear_parts(args.rows, args.blocks), numbers}, options);
  const Tensor gradients = at::empty({numbers}, options);
  args.grad = held(grad, holders).const_data_ptr();
  if (x_needs_grad) args.grad_x = grad_x.mutable_data_ptr();
  args.partials = partials.mutable_data_ptr<float>();
  args.gradients = gradients.mutable_data_ptr<float>();
  narrow_linear_backward(args, c10::cuda::getCurrentCUDAStream());
  return {grad_x, gradients};
}

TORCH_LIBRARY_IMPL(luna, CUDA, m) {
  m.impl("_narrow_linear", forward);
  m.impl("_narrow_linear_backward", backward);
}

}  // namespace
}  // namespace luna::cuda
