// feed_forward on the GPU.

#include "ops/cuda/feed_forward.h"

#include <torch/library.h>

#include "ops/cuda/aligned.h"
#include "ops/cuda/tensors.h"

namespace luna::cuda {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

Tensor held(const Tensor& x, std::vector<Tensor>& holders) {
  return holders.emplace_back(aligned(x));
}

FeedForward arguments(const Tensor& x, const Tensor& up_weight,
                      const Tensor& up_bias, const Tensor& down_weight,
                      double dropout_p, const OptionalTensor& seed,
                      std::vector<Tensor>& holders) {
  constexpr int64_t kWidth = FeedForward::kWidth,
                    kHidden = FeedForward::kHidden;
  TORCH_CHECK_VALUE(
      x.dim() >= 1 && x.size(-1) == kWidth &&
          up_weight.sizes() == at::IntArrayRef({kHidden, kWidth}) &&
          down_weight.sizes() == at::IntArrayRef({kWidth, kHidden}) &&
          up_bias.sizes() == at::IntArrayRef({kHidden}),
      "feed_forward: expected x [...,", kWidth, "] and ", kHidden,
      " hidden numbers, got ", x.sizes(), " and weights ", up_weight.sizes(),
      " and ", down_weight.sizes());
  TORCH_CHECK_TYPE(x.scalar_type() == at::kBFloat16,
                   "feed_forward: expected x of dtype bfloat16, got ",
                   x.scalar_type());
  ops::check_dropout("feed_forward", dropout_p, seed, x);
  FeedForward args;
  args.dropout = row_dropout(dropout_p, seed);
  args.rows = x.numel() / kWidth;
  args.x = held(x, holders).const_data_ptr();
  args.up_weight = held(up_weight, holders).const_data_ptr<float>();
  args.up_bias = held(up_bias, holders).const_data_ptr<float>();
  args.down_weight = held(down_weight, holders).const_data_ptr<float>();
  return args;
}

Tensor forward(const Tensor& x, const Tensor& up_weight, const Tensor& up_bias,
               const Tensor& down_weight, const Tensor& down_bias,
               double dropout_p, const OptionalTensor& seed) {
  const c10::cuda::CUDAGuard guard(x.device());
  std::vector<Tensor> holders;
  FeedForward args =
      arguments(x, up_weight, up_bias, down_weight, dropout_p, seed, holders);
  args.down_bias = held(down_bias, holders).const_data_ptr<float>();
  const Tensor out = at::empty(x.sizes(), x.options());
  args.out = out.mutable_data_ptr();
  if (args.rows > 0) {
    feed_forward(args, c10::cuda::getCurrentCUDAStream());
  }
  return out;
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> backward(
    const Tensor& grad, const Tensor& x, const Tensor& up_weight,
    const Tensor& up_bias, const Tensor& down_weight, double dropout_p,
    const OptionalTensor& seed) {
  const c10::cuda::CUDAGuard guard(x.device());
  std::vector<Tensor> holders;
  FeedForward args =
      arguments(x, up_weight, up_bias, down_weight, dropout_p, seed, holders);
  const Tensor grad_x = at::empty(x.sizes(), x.options());
  const Tensor partials =
      at::empty({feed_forward_parts(args.rows), FeedForward::kGradients},
                up_weight.options());
  const Tensor all = at::empty({FeedForward::kGradients}, up_weight.options());
  args.grad = held(grad.to(x.scalar_type()), holders).const_data_ptr();
  args.grad_x = grad_x.mutable_data_ptr();
  args.partials = partials.mutable_data_ptr<float>();
  args.gradients = all.mutable_data_ptr<float>();
  feed_forward_backward(args, c10::cuda::getCurrentCUDAStream());
  int64_t at = 0;
  const auto next = [&](int64_t numbers) {
    at += numbers;
    return all.narrow(0, at - numbers, numbers);
  };
  const Tensor up = next(FeedForward::kWeight).view_as(up_weight);
  const Tensor down = next(FeedForward::kWeight).view_as(down_weight);
  const Tensor up_b = next(FeedForward::kHidden);
  return {grad_x, up, up_b, down, next(FeedForward::kWidth)};
}

TORCH_LIBRARY_IMPL(luna, CUDA, m) {
  m.impl("_feed_forward", forward);
  m.impl("_feed_forward_backward", backward);
}

}  // namespace
}  // namespace luna::cuda
