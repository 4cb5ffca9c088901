#include "ops/cross_entropy.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include "ops/cuda/cross_entropy.h"
#include "ops/cuda/tensors.h"

namespace luna::cuda {
namespace {

using at::Tensor;

CrossEntropy arguments(const Tensor& logits, const Tensor& labels,
                       const Tensor& log_sums, int64_t ignored,
                       double smoothing) {
  CrossEntropy args;
  args.rows = logits.size(0);
  args.classes = logits.size(1);
  args.logits = logits.const_data_ptr();
  args.type = scalar_of(logits);
  args.labels = labels.const_data_ptr<int64_t>();
  args.ignored = ignored;
  args.smoothing = static_cast<float>(smoothing);
  args.log_sums = const_cast<float*>(log_sums.const_data_ptr<float>());
  return args;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> forward(const Tensor& logits_,
                                                   const Tensor& labels_,
                                                   int64_t ignored,
                                                   double smoothing) {
  ops::check_cross_entropy(logits_, labels_, smoothing);
  const c10::cuda::CUDAGuard guard(logits_.device());
  const Tensor logits = logits_.contiguous(), labels = labels_.contiguous();
  const auto options = logits.options().dtype(at::kFloat);
  const Tensor log_sums = at::empty({logits.size(0), 2}, options),
               of_rows = at::empty({2, logits.size(0)}, options),
               totals = at::empty({3}, options);
  CrossEntropy args = arguments(logits, labels, log_sums, ignored, smoothing);
  args.of_rows = of_rows.mutable_data_ptr<float>();
  args.totals = totals.mutable_data_ptr<float>();
  cross_entropy_forward(args, c10::cuda::getCurrentCUDAStream());
  return {totals[0], totals[1], totals[2], log_sums};
}

Tensor backward(const Tensor& grad, const Tensor& logits_,
                const Tensor& labels_, const Tensor& count,
                const Tensor& log_sums, int64_t ignored, double smoothing) {
  const c10::cuda::CUDAGuard guard(logits_.device());
  const Tensor logits = logits_.contiguous(), labels = labels_.contiguous();
  const Tensor grad_logits = at::empty_like(logits);
  CrossEntropy args = arguments(logits, labels, log_sums, ignored, smoothing);
  args.grad = grad.const_data_ptr<float>();
  args.count = count.const_data_ptr<float>();
  args.grad_logits = grad_logits.mutable_data_ptr();
  cross_entropy_backward(args, c10::cuda::getCurrentCUDAStream());
  return grad_logits;
}

TORCH_LIBRARY_IMPL(luna, CUDA, m) {
  m.impl("_cross_entropy", forward);
  m.impl("_cross_entropy_backward", backward);
}

}  // namespace
}  // namespace luna::cuda
