#include "ops/add_norm.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "ops/cuda/add_norm.h"
#include "ops/cuda/aligned.h"
#include "ops/cuda/tensors.h"

namespace luna::cuda {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

AddNorm arguments(const Tensor& x, const Tensor& weight,
                  const OptionalTensor& seed, double dropout_p, double eps) {
  AddNorm args;
  args.width = x.size(-1);
  args.rows = x.numel() / std::max<int64_t>(1, args.width);
  args.weight = weight.const_data_ptr();
  args.x_type = scalar_of(x);
  args.dropout = row_dropout(dropout_p, seed);
  args.eps = static_cast<float>(eps);
  return args;
}

std::tuple<Tensor, Tensor, Tensor> forward(
    const Tensor& x_, const OptionalTensor& y_, const Tensor& weight_,
    const Tensor& bias_, const OptionalTensor& seed, double dropout_p,
    double eps, at::ScalarType dtype, std::optional<at::ScalarType> low_dtype) {
  ops::check_add_norm(x_, y_, weight_, bias_, dropout_p, seed);
  TORCH_CHECK_VALUE(ops::add_norm_is_fused(x_, y_, weight_),
                    "add_norm: expected an even width up to 1024, got ",
                    x_.size(-1));
  const c10::cuda::CUDAGuard guard(x_.device());
  const Tensor x = aligned(x_);
  const Tensor weight = aligned(weight_), bias = aligned(bias_);
  const Tensor normed = at::empty_like(x, x.options().dtype(dtype));
  AddNorm args = arguments(x, weight, seed, dropout_p, eps);
  args.bias = bias.const_data_ptr();
  args.normed_type = scalar_of(normed);
  args.x = x.const_data_ptr();
  args.normed = normed.mutable_data_ptr();
  Tensor y, sum = at::empty({0}, x.options()),
            low = at::empty({0}, x.options());
  if (low_dtype) {
    low = at::empty_like(x, x.options().dtype(*low_dtype));
    args.low_type = scalar_of(low);
    args.low = low.mutable_data_ptr();
  }
  if (y_) {
    y = aligned(*y_);
    sum = at::empty_like(x);
    args.y_type = scalar_of(y);
    args.y = y.const_data_ptr();
    args.sum = sum.mutable_data_ptr();
  }
  add_norm_forward(args, c10::cuda::getCurrentCUDAStream());
  return {sum, normed, low};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> backward(
    const OptionalTensor& grad_sum, const OptionalTensor& grad_normed,
    const OptionalTensor& grad_low, const Tensor& sum_, const Tensor& weight_,
    std::optional<at::ScalarType> y_dtype, const OptionalTensor& seed,
    double dropout_p, double eps) {
  const c10::cuda::CUDAGuard guard(sum_.device());
  const Tensor sum = aligned(sum_), weight = aligned(weight_);
  AddNorm args = arguments(sum, weight, seed, dropout_p, eps);
  const Tensor grad_x = at::empty_like(sum);
  Tensor grad_y = at::empty({0}, sum.options());
  const Tensor partials = at::empty(
      {add_norm_parts(args.rows, args.width), 2, args.width}, sum.options());
  const Tensor totals = at::empty({2, args.width}, sum.options());
  Tensor beside, up, up_low;
  if (grad_sum) {
    beside = aligned(*grad_sum);
    args.grad_sum = beside.const_data_ptr<float>();
  }
  if (grad_normed) {
    up = aligned(*grad_normed);
    args.grad_normed = up.const_data_ptr();
    args.normed_type = scalar_of(up);
  }
  if (grad_low) {
    up_low = aligned(*grad_low);
    args.grad_low = up_low.const_data_ptr();
    args.low_type = scalar_of(up_low);
  }
  if (y_dtype) {
    grad_y = at::empty_like(sum, sum.options().dtype(*y_dtype));
    args.y_type = scalar_of(grad_y);
    args.grad_y = grad_y.mutable_data_ptr();
  }
  args.sum = const_cast<void*>(sum.const_data_ptr());
  args.grad_x = grad_x.mutable_data_ptr<float>();
  args.partials = partials.mutable_data_ptr<float>();
  args.gradients = totals.mutable_data_ptr<float>();
  add_norm_backward(args, c10::cuda::getCurrentCUDAStream());
  return {grad_x, grad_y, totals[0], totals[1]};
}

TORCH_LIBRARY_IMPL(luna, CUDA, m) {
  m.impl("_add_norm", forward);
  m.impl("_add_norm_backward", backward);
}

}  // namespace
}  // namespace luna::cuda
