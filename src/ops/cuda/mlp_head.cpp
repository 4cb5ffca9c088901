// mlp_head on the GPU.

#include "ops/cuda/mlp_head.h"

#include <torch/library.h>

#include "ops/cuda/tensors.h"

namespace luna::cuda {
namespace {

using at::Tensor;

MlpHead shape_of(const Tensor& x, const Tensor& hidden_weight,
                 const Tensor& out_weight) {
  TORCH_CHECK_VALUE(
      x.dim() == 2 && x.size(0) > 0 && x.size(0) <= MlpHead::kMostRows &&
          x.size(1) <= MlpHead::kMostWidth &&
          hidden_weight.size(1) == x.size(1) &&
          hidden_weight.size(0) <= MlpHead::kMostHidden &&
          out_weight.size(1) == hidden_weight.size(0) &&
          out_weight.size(0) <= MlpHead::kMostClasses,
      "mlp_head: expected up to ", MlpHead::kMostRows, " rows of ",
      MlpHead::kMostWidth, " numbers, ", MlpHead::kMostHidden, " hidden and ",
      MlpHead::kMostClasses, " classes, got x ", x.sizes(), ", weights ",
      hidden_weight.sizes(), " and ", out_weight.sizes());
  MlpHead args;
  args.rows = static_cast<int>(x.size(0));
  args.width = static_cast<int>(x.size(1));
  args.hidden = static_cast<int>(hidden_weight.size(0));
  args.classes = static_cast<int>(out_weight.size(0));
  return args;
}

std::tuple<Tensor, Tensor> forward(const Tensor& x_,
                                   const Tensor& hidden_weight_,
                                   const Tensor& hidden_bias_,
                                   const Tensor& out_weight_) {
  const c10::cuda::CUDAGuard guard(x_.device());
  const Tensor x = x_.contiguous(), hidden_weight = hidden_weight_.contiguous(),
               hidden_bias = hidden_bias_.contiguous(),
               out_weight = out_weight_.contiguous();
  MlpHead args = shape_of(x, hidden_weight, out_weight);
  const Tensor active = at::empty({args.rows, args.hidden}, x.options());
  const Tensor logits = at::empty({args.rows, args.classes}, x.options());
  args.x = x.const_data_ptr<float>();
  args.hidden_weight = hidden_weight.const_data_ptr<float>();
  args.hidden_bias = hidden_bias.const_data_ptr<float>();
  args.out_weight = out_weight.const_data_ptr<float>();
  args.active = active.mutable_data_ptr<float>();
  args.logits = logits.mutable_data_ptr<float>();
  mlp_head(args, c10::cuda::getCurrentCUDAStream());
  return {logits, active};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> backward(
    const Tensor& grad_, const Tensor& x_, const Tensor& active,
    const Tensor& hidden_weight_, const Tensor& out_weight_) {
  const c10::cuda::CUDAGuard guard(x_.device());
  const Tensor grad = grad_.contiguous(), x = x_.contiguous(),
               hidden_weight = hidden_weight_.contiguous(),
               out_weight = out_weight_.contiguous();
  MlpHead args = shape_of(x, hidden_weight, out_weight);
  const Tensor grad_x = at::empty_like(x),
               grad_hidden_weight = at::empty_like(hidden_weight),
               grad_hidden_bias = at::empty({args.hidden}, x.options()),
               grad_out_weight = at::empty_like(out_weight);
  args.grad = grad.const_data_ptr<float>();
  args.x = x.const_data_ptr<float>();
  args.active = const_cast<float*>(active.const_data_ptr<float>());
  args.hidden_weight = hidden_weight.const_data_ptr<float>();
  args.out_weight = out_weight.const_data_ptr<float>();
  args.grad_x = grad_x.mutable_data_ptr<float>();
  args.grad_hidden_weight = grad_hidden_weight.mutable_data_ptr<float>();
  args.grad_hidden_bias = grad_hidden_bias.mutable_data_ptr<float>();
  args.grad_out_weight = grad_out_weight.mutable_data_ptr<float>();
  mlp_head_backward(args, c10::cuda::getCurrentCUDAStream());
  return {grad_x, grad_hidden_weight, grad_hidden_bias, grad_out_weight};
}

TORCH_LIBRARY_IMPL(luna, CUDA, m) {
  m.impl("_mlp_head", forward);
  m.impl("_mlp_head_backward", backward);
}

}  // namespace
}  // namespace luna::cuda
